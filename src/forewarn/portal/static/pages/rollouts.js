// Rollouts: the list, and the plan of a new one before it starts.

import { get } from "../api.js";
import { facts, links, rolloutLink, table, tag, time } from "../parts.js";
import { h } from "../render.js";
import { RequestForm } from "../request_form.js";
import { waves } from "./rollout.js";

export default {
  title: () => "Rollouts",

  async load({ state, controller: { signal } }) {
    state.form?.check();
    return get("rollouts", { all: true, limit: 100 }, signal);
  },

  concerns: (row) => /^(rollout|wave)-|^(executed|marked-done|healthy|unhealthy)$/.test(row.kind),

  view({ rollouts }, context) {
    return [
      table(
        "Rollouts",
        ["Rollout", "Hosts", "Status", "Progress", "Requested"],
        rollouts.map((rollout) => ({
          key: rollout.id,
          cells: [
            rolloutLink(rollout.id),
            rollout.hosts.join(", "),
            tag(rollout.status, `state-${rollout.status}`),
            progress(rollout.counts),
            ["by ", rollout.requested_by, " at ", time(rollout.requested_at)],
          ],
        })),
        "There has been no rollout.",
      ),
      context.can("operator") && newRollout(context),
    ];
  },
};

export function progress({ pending, in_progress: active, done, skipped }) {
  const total = pending + active + done + skipped;
  return [
    h("progress", { max: total || 1, value: done + skipped, "aria-label": `${done + skipped} of ${total} hosts` }),
    ` ${done} of ${total} hosts`,
    active > 0 && `, ${active} in progress`,
    skipped > 0 && `, ${skipped} skipped`,
  ];
}

function newRollout(context) {
  const form = (context.state.form ??= new RequestForm(context, {
    path: "rollouts",
    values: { hosts: context.query.get("hosts") ?? "" },
    hint: "Enter hosts to see the plan.",
    body: ({ hosts, type, notice, pause, health_timeout, max_unavailable }) => {
      const given = Object.entries({ type, notice, pause, health_timeout }).filter(([, value]) => value);
      const patterns = hosts.split(/[\s,]+/).filter(Boolean);
      return patterns.length
        ? {
            hosts: patterns,
            ...Object.fromEntries(given),
            ...(max_unavailable ? { max_unavailable: Number(max_unavailable) } : {}),
          }
        : null;
    },
    describe: plan,
    done: (rollout) => context.navigate(`/portal/rollouts/${rollout.id}`),
  }));
  return h(
    "section",
    { class: "card", "aria-label": "New rollout" },
    h("h2", null, "New rollout"),
    form.view(
      [
        form.field("hosts", "Hosts", {}, ["Names or patterns, such as ", h("code", { class: "name" }, "rack-1-*")]),
        form.field("type", "Event", { options: [["", "Freeze (default)"], ["Reboot"]] }),
        form.field("max_unavailable", "At most at once", { type: "number", min: 1, placeholder: "the default" }),
        form.field("notice", "Notice", { placeholder: "the minimum" }),
        form.field("pause", "Pause between waves", { placeholder: "the default" }),
        form.field("health_timeout", "Health timeout", { placeholder: "the default" }),
      ],
      "Start the rollout",
    ),
  );
}

function plan(found) {
  return [
    facts([
      ["Expected end", time(found.expected_end)],
      ["Latest end", time(found.latest_end)],
      found.skipped.length > 0 && ["Skipped", links(found.skipped, (each) => `${each.host}: ${each.reason}`)],
      Object.keys(found.not_notified).length > 0 && [
        "No notice",
        links(Object.entries(found.not_notified), ([scope, reason]) => `${scope} (${reason})`),
      ],
    ]),
    waves(found.waves),
  ];
}
