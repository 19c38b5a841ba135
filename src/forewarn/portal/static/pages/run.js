// A run of a scenario: its steps, as they pass or fail.

import { get, part, post } from "../api.js";
import { button, expectations, facts, links, tag, time, vmLink } from "../parts.js";
import { h } from "../render.js";

const MARKS = { passed: "✓", failed: "×", running: "▶", pending: "·", skipped: "–" };

export default {
  title: (data, { params }) => (data ? `Run ${params.id}: ${data.title}` : `Run ${params.id}`),
  topics: ["runs"],
  topic: (name, data, { params }) => (name === "run" && data.id === params.id ? "load" : undefined),
  concerns: () => false,
  load: ({ params, controller: { signal } }) => get(`runs/${part(params.id)}`, {}, signal),

  view(run, context) {
    return [
      context.can("operator") &&
        !run.ended_at &&
        h(
          "p",
          { class: "buttons" },
          button("Stop the run", () => context.act(() => post(`runs/${part(run.id)}/stop`), "Stopped.")),
        ),
      facts([
        ["Status", tag(run.status, `state-${run.status}`), run.error && ` ${run.error}`],
        ["Scenario", h("a", { href: `/portal/scenarios/${part(run.scenario)}` }, run.scenario)],
        run.vms?.length > 0 && ["VMs", links(run.vms, vmLink, 20)],
        ["Started", time(run.started_at)],
        run.ended_at && ["Ended", time(run.ended_at)],
      ]),
      h("h2", null, "Steps"),
      h(
        "ol",
        { class: "steps" },
        run.steps.map((step, index) =>
          h(
            "li",
            { class: `step-${step.status}`, key: index },
            h("span", { class: "mark", "aria-hidden": "true" }, MARKS[step.status] ?? "·"),
            h("strong", null, step.title),
            " ",
            tag(step.status, `state-${step.status}`),
            step.started_at &&
              h("span", { class: "sub" }, time(step.started_at), step.ended_at && [" to ", time(step.ended_at)]),
            expectations(step),
            step.error && h("span", { class: "problem-text" }, step.error),
          ),
        ),
      ),
    ];
  },
};
