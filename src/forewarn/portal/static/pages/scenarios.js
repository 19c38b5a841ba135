// Scenarios, and the runs of them.

import { get, part } from "../api.js";
import { table, tag, time } from "../parts.js";
import { h } from "../render.js";
import { seconds } from "../time.js";

export default {
  title: () => "Scenarios",
  topics: ["runs"],
  topic: (name) => (name === "run" ? "load" : undefined),
  concerns: () => false,

  async load({ controller: { signal } }) {
    const [scenarios, runs] = await Promise.all([
      get("scenarios", { limit: 1000 }, signal),
      get("runs", { limit: 20 }, signal),
    ]);
    return { scenarios: scenarios.scenarios, runs: runs.runs };
  },

  view({ scenarios, runs }) {
    return [
      h("p", null, "A scenario is a sequence of events with an expectation at each step."),
      table(
        "Scenarios",
        ["Scenario", "What happens", "Needs", "Duration"],
        scenarios.map((scenario) => ({
          key: scenario.name,
          cells: [
            h("a", { href: `/portal/scenarios/${part(scenario.name)}` }, scenario.name),
            scenario.title,
            scenario.needs.text,
            `up to ${seconds(scenario.max_duration_seconds)}`,
          ],
        })),
      ),
      h("h2", null, "Runs"),
      table(
        "Runs",
        ["Run", "Scenario", "Status", "VMs", "Started"],
        runs.map((run) => ({
          key: run.id,
          cells: [
            h("a", { href: `/portal/runs/${part(run.id)}` }, run.id),
            run.scenario,
            tag(run.status, `state-${run.status}`),
            (run.vms ?? []).join(", "),
            time(run.started_at),
          ],
        })),
        "No scenario has run since the service started.",
      ),
    ];
  },
};
