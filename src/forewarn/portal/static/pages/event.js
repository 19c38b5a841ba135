// An event: its state, what it waits for, its operation, and its history.

import { get, part, post } from "../api.js";
import { eventButtons, routineCauses } from "../event_actions.js";
import {
  button,
  conditions,
  eventLink,
  eventType,
  facts,
  groupLink,
  historyTable,
  hostLink,
  left,
  links,
  rolloutLink,
  since,
  tag,
  time,
  vmLink,
} from "../parts.js";
import { h } from "../render.js";
import { now, seconds } from "../time.js";
import "../timeline.js";

export default {
  title: (data) => (data ? `${data.event.type} of ${data.event.vms.slice(0, 3).join(", ")}` : "Event"),

  async load(context) {
    const { params, controller } = context;
    const path = `events/${part(params.id)}`;
    const { signal } = controller;
    const [event, explanation, history] = await Promise.all([
      get(path, {}, signal),
      get(`${path}/explain`, {}, signal),
      get("history", { event: params.id, limit: 1000 }, signal),
    ]);
    const operation = context.isTenant ? null : await get(`operations/${event.operation}`, {}, signal);
    const routine = await routineCauses(context);
    return { event, explanation, history: history.history, operation, routine };
  },

  concerns: (row) => Boolean(row.operation),

  view(data, context) {
    const { event, explanation, history, operation } = data;
    const isScheduled = event.status === "scheduled";
    return [
      actions(data, context),
      facts([
        ["Type", eventType(event.type)],
        ["Status", tag(event.status, `state-${event.status}`)],
        ["VMs", links(event.vms, vmLink, 20)],
        ["Group", groupLink(event.group), event.scope !== event.group && ` (scope ${event.scope})`],
        event.status !== "advisory" && [
          "NotBefore",
          time(event.not_before),
          isScheduled && [" (in ", left(event.not_before), ")"],
        ],
        event.started_at && [
          "Started",
          time(event.started_at),
          event.status === "started" && [" (", since(event.started_at), ")"],
        ],
        event.ended_at && ["Ended", time(event.ended_at)],
        event.status !== "advisory" && ["Approval", event.approved_at ? ["by ", event.approved_by, " at ", time(event.approved_at)] : "none"],
        event.duration_seconds !== null && [
          "Interruption",
          event.duration_seconds < 0 ? "unknown" : seconds(event.duration_seconds),
        ],
        ["Cause", `${explanation.cause}: ${explanation.cause_description}`],
        event.description && ["Description", event.description],
        ["Requested", "by ", explanation.requested_by, " at ", time(explanation.requested_at)],
        explanation.host && ["Host", hostLink(explanation.host)],
        explanation.rollout && ["Rollout", rolloutLink(explanation.rollout)],
        ["Id", h("code", null, event.id)],
      ]),
      h(
        "section",
        { class: "card", "aria-label": "Timeline" },
        h("fw-timeline", { ".data": { events: [event], ...span(event) } }),
      ),
      !event.ended_at && [
        h("h2", null, "What it waits for"),
        conditions(explanation),
        operation?.last_failure &&
          h(
            "p",
            { class: "notice problem" },
            `The last attempt failed: ${operation.last_failure} `,
            operation.next_attempt_at && ["Next attempt at ", time(operation.next_attempt_at), "."],
          ),
      ],
      operation?.events.length > 1 && [
        h("h2", null, "Other events of the operation"),
        h(
          "p",
          null,
          links(
            operation.events.filter((other) => other.id !== event.id),
            (other) => eventLink(other.id, `${other.group} (${other.approved_at ? "approved" : other.status})`),
            30,
          ),
        ),
      ],
      h("h2", null, "History"),
      historyTable(history, context),
    ];
  },
};

function span(event) {
  const begin = Date.parse(event.created_at);
  const end = Date.parse(event.ended_at ?? event.not_before);
  const margin = Math.max((end - begin) / 4, 600_000);
  const time = now();
  return { past: Math.max(margin, time - begin + margin), future: Math.max(margin, end - time + margin) };
}

function actions({ event, operation, explanation: { cause }, routine }, context) {
  const found = eventButtons(context, { ...event, cause }, routine);
  if (
    event.status === "started" &&
    context.can("operator") &&
    operation &&
    !operation.executed_at &&
    context.session.fabric !== "simulated"
  ) {
    const mark = (result) => () =>
      context.act(() => post(`operations/${operation.id}/${result}`), `Marked as ${result}.`);
    found.push(
      button("Mark work as done", mark("done"), { style: "primary" }),
      button("Mark work as failed", mark("failed")),
    );
  }
  return found.length > 0 && h("p", { class: "buttons" }, found);
}
