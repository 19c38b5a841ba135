// The form that requests an operation on VMs or on a host. The causes come from the API.

import { facts, hostLink, time } from "./parts.js";
import { h } from "./render.js";
import { RequestForm } from "./request_form.js";
import { seconds } from "./time.js";

/** `target`: `{vms}` or `{host}`; `vm`: the VM, if the target is one. */
export function operationForm(context, causes, target, vm) {
  const isHost = Boolean(target.host);
  const fitting = causes.filter(
    (cause) => (cause.target === "host" || cause.target === "tenants") === isHost && fits(cause, vm),
  );
  const state = context.state;
  state.form ??= new RequestForm(context, {
    path: "operations",
    values: { cause: fitting[0].name },
    body: (values) => body(values, target),
    describe: (result) => plan(result),
    done: (result) => context.navigate(destination(result)),
  });
  const form = state.form;
  const cause = fitting.find((each) => each.name === form.values.cause) ?? fitting[0];
  return form.view(
    [
      form.field("cause", "Operation", { options: fitting.map((each) => [each.name, each.name]) }, cause.meaning),
      cause.types.length > 1 &&
        form.field("type", "Event", {
          options: [["", `${cause.types[0]} (default)`], ...cause.types.slice(1).map((type) => [type])],
        }),
      cause.notice_seconds > 0 &&
        form.field(
          "notice",
          "Notice",
          { placeholder: seconds(cause.notice_seconds) },
          "For example 30m. Empty: the default.",
        ),
      cause.notice_seconds > 0 &&
        form.values.notice &&
        form.field(
          "override",
          "Minimum notice",
          {
            options: [
              ["", "applies"],
              ["notice", "is overridden"],
            ],
          },
          "History records an override.",
        ),
      cause.duration_seconds !== null &&
        form.field("duration", "Interruption", { placeholder: seconds(cause.duration_seconds) }),
      cause.types.length > 0 &&
        cause.source === "platform" &&
        form.field("description", "Description", { placeholder: "the default text" }),
    ],
    `Request ${cause.name}`,
    cause.dangerous ? "danger" : "primary",
  );
}

/** Leaves out what a VM can never be the target of. The service checks the rest. */
function fits(cause, vm) {
  if (!vm) return true;
  if (cause.name === "start") return vm.state === "deallocated";
  if (["eviction", "rebalance"].includes(cause.name)) return vm.priority === "spot";
  if (["image-upgrade", "scale-in", "instance-repair"].includes(cause.name)) return vm.kind === "scale-set";
  return true;
}

function body({ cause, type, notice, override, duration, description }, target) {
  const given = Object.entries({ type, notice, duration, description }).filter(([, value]) => value);
  const overrides = override ? { overrides: [override] } : {};
  return { cause, ...target, ...Object.fromEntries(given), ...overrides };
}

function plan({ operations }) {
  return operations.map((operation) => [
    facts([
      ["Work", operation.verb ?? "none", operation.vms.length > 1 && ` of ${operation.vms.length} VMs`],
      ...operation.events.map((event) => [
        "Event",
        `${event.type} for ${event.scope}`,
        event.status !== "advisory" && [", NotBefore ", time(event.not_before)],
        event.approved_by && `, approved by ${event.approved_by}`,
      ]),
      ...Object.entries(operation.not_notified).map(([scope, reason]) => ["No notice", `${scope}: ${reason}`]),
      ...Object.entries(operation.destinations ?? {}).map(([name, host]) => [
        "Moves",
        `${name} to `,
        host ? hostLink(host) : "no host has room now",
      ]),
      operation.overrides.length > 0 && ["Overrides", operation.overrides.join(", ")],
    ]),
    !operation.events.length &&
      operation.type &&
      h("p", { class: "warning" }, "Nobody is notified. The work starts at once."),
  ]);
}

function destination({ operations }) {
  const event = operations.flatMap((operation) => operation.events)[0];
  return event ? `/portal/events/${event.id}` : `/portal/vms/${encodeURIComponent(operations[0].vms[0])}`;
}
