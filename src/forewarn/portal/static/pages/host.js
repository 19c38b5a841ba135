// A host: its state, the VMs on it, and work on it.

import { causes, get, part, post } from "../api.js";
import { operationForm } from "../operation_form.js";
import {
  approvals,
  button,
  facts,
  historyTable,
  operationEvents,
  table,
  tag,
  time,
  vmLink,
} from "../parts.js";
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
    const operations = await Promise.all(host.operations.map(({ id }) => get(`operations/${id}`, {}, signal)));
    return { host, operations, history: history.history, causes: known };
  },

  concerns: (row, { params }) =>
    row.host === params.name ||
    row.host !== null ||
    ["executed", "marked-done", "completed", "fleet-applied"].includes(row.kind),

  view({ host, operations, history, causes }, context) {
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
      operations.length > 0 && [
        h("h2", null, "Operations"),
        table(
          "Operations",
          ["Cause", "Status", "Requested", "Approvals", "Events", ...(context.can("operator") ? [""] : [])],
          operations.map((operation) => ({
            key: operation.id,
            cells: [
              operation.cause,
              tag(operation.status, `state-${operation.status}`),
              ["by ", operation.requested_by, " at ", time(operation.requested_at)],
              approvals(operation),
              operationEvents(operation),
              ...(context.can("operator") ? [operationButtons(context, operation)] : []),
            ],
          })),
        ),
      ],
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
          h("a", { href: `/portal/rollouts?hosts=${part(host.name)}` }, "Plan a rollout of this host"),
        ),
      h("h2", null, "History"),
      historyTable(history, context),
    ];
  },
};

function operationButtons(context, { id, cause, status, host }) {
  if (status !== "pending") return "";
  const cancel = () =>
    context.open({
      title: `Cancel ${cause} of ${host}?`,
      view: () => h("p", null, "The operation and all its events are cancelled."),
      confirm: "Cancel the operation",
      danger: true,
      run: () => post(`operations/${id}/cancel`),
      done: `Cancelled ${cause} of ${host}.`,
    });
  return h("span", { class: "buttons" }, button("Cancel", cancel, { label: `Cancel ${cause}` }));
}
