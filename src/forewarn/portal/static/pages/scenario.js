// A scenario: its steps, and the form that runs it.

import { get, part, post } from "../api.js";
import { expectations, facts } from "../parts.js";
import { h } from "../render.js";
import { isVirtual, seconds } from "../time.js";

export default {
  title: (data, { params }) => data?.title ?? params.name,
  concerns: () => false,
  load: ({ params, controller: { signal } }) => get(`scenarios/${part(params.name)}`, {}, signal),

  view(scenario, context) {
    return [
      h("p", null, scenario.description),
      facts([
        ["Needs", scenario.needs.text],
        ["Duration", `up to ${seconds(scenario.max_duration_seconds)}`],
        ["Source", scenario.source],
      ]),
      context.can("operator") && form(scenario, context),
      h("h2", null, "Steps"),
      h(
        "ol",
        { class: "steps" },
        scenario.steps.map((step) =>
          h(
            "li",
            null,
            h("strong", null, step.title),
            step.action && step.action !== step.title && h("span", { class: "sub" }, step.action),
            expectations(step),
          ),
        ),
      ),
    ];
  },
};

function form(scenario, context) {
  return h(
    "form",
    {
      class: "card filters",
      onsubmit: (happening) => {
        happening.preventDefault();
        const { vms, speed, enable } = happening.target.elements;
        const names = vms.value.split(/[\s,]+/).filter(Boolean);
        const body = {
          scenario: scenario.name,
          enable: enable.checked,
          ...(names.length ? { vms: names } : {}),
          ...(speed.value ? { speed: Number(speed.value) } : {}),
        };
        context.act(async () => context.navigate(`/portal/runs/${part((await post("runs", body)).id)}`));
      },
    },
    h(
      "p",
      { class: "field" },
      h("label", { for: "vms" }, "VMs"),
      h("input", {
        id: "vms",
        name: "vms",
        placeholder: "chosen automatically",
        autocomplete: "off",
        spellcheck: "false",
      }),
    ),
    h(
      "p",
      { class: "field" },
      h("label", { for: "speed" }, "Speed-up factor"),
      h("input", {
        id: "speed",
        name: "speed",
        type: "number",
        min: 0.001,
        step: "any",
        placeholder: isVirtual() ? "as fast as possible" : "1",
      }),
    ),
    h(
      "p",
      { class: "field check" },
      h("input", { id: "enable", name: "enable", type: "checkbox", checked: true }),
      h("label", { for: "enable" }, "Enable groups that have not polled yet"),
    ),
    h("p", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Run the scenario")),
  );
}
