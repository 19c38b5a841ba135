// A host: its state, the VMs on it, and work on it.

import { causes, get, part, post } from "../api.js";
import { operationForm } from "../operation_form.js";
import { button, facts, historyTable, tag, vmLink } from "../parts.js";
import { h } from "../render.js";

export default {
  title: (_, { params }) => `Host ${params.name}`,

  async load(context) {
    const {
      params,
      state,
      controller: { signal },
    } = context;
    const [host, history] = await Promise.all([
      get(`hosts/${part(params.name)}`, {}, signal),
      get("history", { host: params.name, order: "newest", limit: 50 }, signal),
    ]);
    state.form?.check();
    const known = context.can("operator") ? await causes() : [];
    return { host, history: history.history, causes: known };
  },

  concerns: (row, { params }) =>
    row.host === params.name ||
    row.host !== null ||
    ["executed", "marked-done", "completed", "fleet-applied"].includes(row.kind),

  view({ host, history, causes }, context) {
    return [
      facts([
        ["State", tag(host.state, host.state === "in-service" ? "" : "state-unhealthy"), host.spare && " (spare)"],
        [
          "VMs",
          host.vms.length
            ? h(
                "ul",
                { class: "inline" },
                host.vms.map((name) => h("li", { key: name }, vmLink(name))),
              )
            : "none",
        ],
        [
          "Operations",
          host.operations.length
            ? h(
                "ul",
                null,
                host.operations.map((operation) =>
                  h(
                    "li",
                    { key: operation.id },
                    `${operation.cause}: ${operation.status} `,
                    h("code", null, operation.id.slice(0, 8)),
                  ),
                ),
              )
            : "none",
        ],
      ]),
      context.can("operator") &&
        host.state !== "in-service" &&
        h(
          "p",
          { class: "buttons" },
          button(
            "Return to service",
            () => context.act(() => post(`hosts/${part(host.name)}/return`), `${host.name} is in service.`),
            { style: "primary" },
          ),
        ),
      causes.length > 0 &&
        h(
          "section",
          { class: "card", "aria-label": "Request an operation" },
          h("h2", null, "Work on this host"),
          operationForm(context, causes, { host: host.name }),
        ),
      causes.length > 0 &&
        h(
          "p",
          null,
          h("a", { href: `/portal/rollouts?hosts=${part(host.name)}` }, "Plan a rollout that starts with this host"),
        ),
      h("h2", null, "History"),
      historyTable(history, context),
    ];
  },
};
