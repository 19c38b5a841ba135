// Now: upcoming and active events, soonest first, with a timeline.

import "../timeline.js";
import { get } from "../api.js";
import {
  eventLink,
  eventType,
  groupLink,
  hostLink,
  left,
  links,
  rolloutLink,
  since,
  table,
  tag,
  time,
  vmLink,
  waits,
} from "../parts.js";
import { h } from "../render.js";
import { now, setClock } from "../time.js";
import { eventButtons, routineCauses } from "../event_actions.js";

const PERIODS = [
  ["1 hour", 3_600_000],
  ["6 hours", 21_600_000],
  ["1 day", 86_400_000],
  ["8 days", 691_200_000],
];

export default {
  title: () => "Now",

  async load(context) {
    const { controller } = context;
    const [data, routine] = await Promise.all([get("overview", {}, controller.signal), routineCauses(context)]);
    setClock(data.clock);
    return { ...data, routine };
  },

  concerns: (row) =>
    !row.kind.startsWith("token-") && !row.kind.startsWith("session-") && !row.kind.startsWith("webhook-"),

  view(data, context) {
    const { events } = data;
    const started = events.filter((event) => event.status === "started").length;
    const next = events.find((event) => event.status === "scheduled");
    return [
      h(
        "p",
        { class: "summary" },
        events.length
          ? h("span", null, h("strong", null, data.total_events), data.total_events === 1 ? " event" : " events")
          : h("span", null, "No event is scheduled or started."),
        next && h("span", null, "next NotBefore in ", h("strong", null, left(next.not_before))),
        started > 0 && h("span", null, h("strong", null, started), " started"),
        data.not_enabled.length > 0 &&
          h(
            "a",
            { href: "/portal/fleet?state=silent" },
            h("strong", null, data.not_enabled.length),
            data.not_enabled.length === 1 ? " scope gets no notices" : " scopes get no notices",
          ),
        data.hosts_out_of_service?.length > 0 &&
          h(
            "span",
            null,
            "out of service: ",
            links(
              data.hosts_out_of_service.map((host) => host.name ?? host),
              hostLink,
              3,
            ),
          ),
        (data.rollouts ?? []).map((rollout) =>
          h("span", { key: rollout.id }, "rollout ", rolloutLink(rollout.id), ` ${rollout.status}`),
        ),
      ),
      timeline(data, context),
      h("h2", null, "Events"),
      table(
        "Events",
        ["Starts in", "Event", "VMs", "Cause", "Approvals", "Waits for", ...(context.canApprove ? [""] : [])],
        events.map((event) => row(event, data.routine, context)),
        "Events appear here when they are scheduled.",
      ),
      data.total_events > events.length &&
        h(
          "p",
          { class: "muted" },
          `${data.total_events - events.length} more events are not shown. The fleet page shows all VMs.`,
        ),
    ];
  },
};

function timeline(data, context) {
  const soonest = data.events.find((event) => event.status === "scheduled")?.not_before;
  const wait = soonest ? Date.parse(soonest) - now() : 0;
  const chosen = context.state.period ?? (PERIODS.find(([, length]) => wait <= length) ?? PERIODS.at(-1))[1];
  return h(
    "section",
    { class: "card", "aria-label": "Timeline" },
    h(
      "div",
      { class: "choices", role: "group", "aria-label": "Period" },
      PERIODS.map(([name, length]) =>
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(length === chosen),
            key: name,
            onclick: () => {
              context.state.period = length;
              context.update();
            },
          },
          name,
        ),
      ),
    ),
    h("fw-timeline", { ".data": { events: [...data.events, ...data.ended_events], past: chosen / 4, future: chosen } }),
  );
}

function row(event, routine, context) {
  const approved = event.approved_at !== null;
  const isScheduled = event.status === "scheduled";
  return {
    key: event.id,
    class: `event ${event.status}`,
    cells: [
      isScheduled
        ? [h("strong", null, left(event.not_before)), h("span", { class: "sub" }, time(event.not_before))]
        : [
            tag(event.status, `state-${event.status}`),
            h("span", { class: "sub" }, since(event.started_at ?? event.created_at)),
          ],
      [eventLink(event.id, eventType(event.type)), h("span", { class: "sub" }, event.description)],
      [
        links(event.vms, vmLink, 4),
        h(
          "span",
          { class: "sub" },
          event.group !== event.vms[0] && [groupLink(event.group), " "],
          event.host && ["on ", hostLink(event.host)],
        ),
      ],
      [event.cause, event.requested_by && h("span", { class: "sub" }, `by ${event.requested_by}`)],
      [
        approved ? tag("approved", "state-approved") : isScheduled ? tag("not approved") : "–",
        approved && h("span", { class: "sub" }, `by ${event.approved_by}`),
        event.operation_events > 1 &&
          h("span", { class: "sub" }, `${event.operation_approvals} of ${event.operation_events} scopes`),
      ],
      waits(event.waits),
      ...(context.canApprove
        ? [h("span", { class: "buttons" }, eventButtons(context, event, routine, `${event.type} of ${event.vms[0]}`))]
        : []),
    ],
  };
}
