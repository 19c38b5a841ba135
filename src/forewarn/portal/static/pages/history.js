// History: filters, permanent links and downloads.

import { get, url } from "../api.js";
import { button, historyTable } from "../parts.js";
import { h } from "../render.js";

const FILTERS = [
  ["vm", "VM"],
  ["group", "Group"],
  ["host", "Host"],
  ["event", "Event"],
  ["operation", "Operation"],
  ["rollout", "Rollout"],
  ["type", "Event type"],
  ["cause", "Cause"],
  ["kind", "Kind"],
  ["by", "By"],
  ["since", "Since", "2h, 30d or a date"],
  ["until", "Until", "a date or time"],
  ["during", "During", "2026-03 or a date"],
];
const NOT_FOR_TENANTS = ["host", "operation", "rollout"];
const PAGE = 100;
const isWide = () => matchMedia("(width >= 44rem)").matches;

export default {
  title: () => "History",

  async load(context) {
    const { query } = context;
    const filters = Object.fromEntries(FILTERS.map(([name]) => [name, query.getAll(name)]));
    const row = Number(query.get("row") ?? 0);
    try {
      return { ...(await read(context, filters, row)), filters, row };
    } catch (problem) {
      if (problem.status !== 400 && problem.status !== 404) throw problem;
      return { rows: [], more: false, filters, row, problem }; // The user can correct the filter.
    }
  },

  view({ rows, filters, more, row, problem }, context) {
    const shown = FILTERS.filter(([name]) => !(context.isTenant && NOT_FOR_TENANTS.includes(name)));
    return [
      h(
        "details",
        { open: (context.state.open ??= isWide() || shown.some(([name]) => filters[name].length)) },
        h("summary", null, "Filter"),
        h(
          "form",
          {
            class: "filters",
            role: "search",
            onsubmit: (happening) => {
              happening.preventDefault();
              const values = Object.fromEntries(
                [...new FormData(happening.target)].map(([name, value]) => [name, value.trim().split(/[\s,]+/)]),
              );
              context.setQuery({ ...values, row: "" });
              context.reload();
            },
          },
          shown.map(([name, label, help]) =>
            h(
              "p",
              { class: "field", key: name },
              h("label", { for: `filter-${name}` }, label),
              h("input", {
                id: `filter-${name}`,
                name,
                value: filters[name].join(" "),
                placeholder: help ?? "",
                autocomplete: "off",
                spellcheck: "false",
              }),
            ),
          ),
          h(
            "p",
            { class: "buttons" },
            h("button", { type: "submit", class: "primary" }, "Filter"),
            button("Clear", () => {
              context.setQuery(Object.fromEntries([...FILTERS.map(([name]) => [name, ""]), ["row", ""]]));
              context.reload();
            }),
          ),
        ),
      ),
      h(
        "p",
        null,
        row > 0
          ? [`Rows up to ${row}. `, h("a", { href: "/portal/history" }, "Show the newest rows"), ". "]
          : "Newest rows first. ",
        "Download all matching rows: ",
        h("a", { href: url("history", { ...filters, format: "csv" }), download: "history.csv" }, "CSV"),
        ", ",
        h("a", { href: url("history", { ...filters, format: "json" }), download: "history.json" }, "JSON"),
      ),
      problem ? h("p", { class: "notice problem", role: "alert" }, problem.message) : historyTable(rows, context),
      more &&
        h(
          "p",
          { class: "buttons" },
          button("Show more", () => {
            context.state.rows = rows.length + PAGE;
            context.reload();
          }),
        ),
    ];
  },
};

/** The cursor of a page that starts below a row: the API's cursors are its number in base64. */
const cursorAfter = (row) => btoa(String(row)).replace(/=+$/, "");

/** Reads the newest rows that match; with a row, those up to it. */
async function read({ state, controller }, filters, row) {
  const most = Math.max(PAGE, state.rows ?? 0);
  const rows = [];
  let cursor = row ? cursorAfter(row + 1) : "";
  do {
    const limit = Math.min(most - rows.length, 1000);
    const page = await get("history", { ...filters, order: "newest", limit, cursor }, controller.signal);
    rows.push(...page.history);
    cursor = page.next;
  } while (cursor && rows.length < most);
  return { rows, more: Boolean(cursor) };
}
