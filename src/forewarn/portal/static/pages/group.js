// A group: its policy, its scopes, its VMs and its history.

import { get, part } from "../api.js";
import { facts, historyTable, links, since, table, tag, vmLink } from "../parts.js";
import { h } from "../render.js";

export default {
  title: (_, { params }) => `Group ${params.name}`,

  async load({ params, controller: { signal } }) {
    const [group, vms, history] = await Promise.all([
      get(`groups/${part(params.name)}`, {}, signal),
      get("vms", { group: params.name, limit: 1000, count: true }, signal),
      get("history", { group: params.name, order: "newest", limit: 50 }, signal),
    ]);
    return { group, vms, history: history.history };
  },

  concerns: (row, { params }) => row.group === params.name || row.kind === "fleet-applied",

  view({ group, vms, history }, context) {
    return [
      facts([
        ["Kind", group.kind],
        [
          "VMs",
          String(group.vms),
          " (",
          h("a", { href: `/portal/fleet?q=${part(group.name)}` }, "show in the fleet"),
          ")",
        ],
        ["Domains", `${group.update_domains} update domains, ${group.fault_domains} fault domains`],
        ["Automatic approval", group.auto_approve.join(", ") || "none"],
        ["If all VMs are deallocated", group.approve_when_down ? "events are approved" : "events wait for NotBefore"],
        [
          "Maintenance windows",
          group.windows.length
            ? h(
                "ul",
                null,
                group.windows.map((text) => h("li", null, text)),
              )
            : "any time",
        ],
        ["Terminate notice", group.terminate_notice ?? "none"],
        group.os_image_notice && ["OS image notice", group.os_image_notice],
        group.eviction_policy && ["Eviction policy", group.eviction_policy],
        group.policy_changed && ["Policy", "changed at run time; the fleet file has another one"],
      ]),
      h("h2", null, "Scopes"),
      table(
        "Scopes",
        ["Scope", "VMs", "Notices", "Incarnation", "Last poll"],
        group.scopes.map((scope) => ({
          key: scope.name,
          cells: [
            scope.name,
            String(scope.vms),
            scope.events_enabled ? "enabled" : tag("not polling", "state-silent"),
            String(scope.incarnation),
            scope.last_seen_at ? since(scope.last_seen_at) : "never",
          ],
        })),
      ),
      h("h2", null, "VMs"),
      h(
        "p",
        null,
        links(
          vms.vms.map((vm) => vm.name),
          vmLink,
          100,
        ),
      ),
      h("h2", null, "History"),
      historyTable(history, context),
    ];
  },
};
