// <fw-timeline>: events as bars on a time axis, one lane per group. It moves with the time of the service.

import { h, render } from "./render.js";
import { Ticking, clockTime, duration, now } from "./time.js";

const LANE = 26;
const BAR = 14;
const TOP = 22;
const LABEL = 130;
const MAX_LANES = 40;
const MAX_ROWS = 6; // of a lane
const STEPS = [60, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800].map((each) => each * 1000);

const BARS = [
  ["noticed", "notice", "from the notice to NotBefore"],
  ["noticed approved", "approved", "approved: can start early"],
  ["running", "started", "from start to end"],
  ["ended", "ended", ""],
];

class Timeline extends Ticking {
  #data = { events: [], past: 900_000, future: 3_600_000 };

  constructor() {
    super();
    this.observer = new ResizeObserver(() => this.tick());
  }

  connectedCallback() {
    super.connectedCallback();
    this.observer.observe(this);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.observer.disconnect();
  }

  /** `{events, past, future, lane}`: what to show, how many milliseconds before and after now, and the lane of an event. */
  set data(data) {
    this.#data = data;
    this.tick();
  }

  tick() {
    if (!this.isConnected || !this.clientWidth) return;
    const { events, past, future, lane = (event) => event.scope } = this.#data;
    const time = now();
    const [begin, end, width] = [time - past, time + future, this.clientWidth];
    const label = width < 520 ? 84 : LABEL;
    const x = (at) => label + ((Math.min(Math.max(at, begin), end) - begin) / (end - begin)) * (width - label - 8);
    const lanes = new Map();
    for (const event of events) {
      const last = Date.parse(event.ended_at ?? event.not_before);
      if (event.ended_at && last < begin) continue;
      const name = lane(event);
      if (!lanes.has(name)) lanes.set(name, []);
      lanes.get(name).push(event);
    }
    const names = [...lanes.keys()].slice(0, MAX_LANES);
    const rows = names.flatMap((name) =>
      packed(lanes.get(name))
        .slice(0, MAX_ROWS)
        .map((row, index) => [index ? "" : name, row]),
    );
    const hidden = [...lanes.values()].flat().length - rows.flatMap(([, row]) => row).length;
    const height = TOP + Math.max(rows.length, 1) * LANE + 4;
    render(
      this,
      // A screen reader gets the same from the list of events.
      h(
        "svg",
        { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
        ticks(begin, end, width - label).map((at) => [
          h("line", { class: "tick", x1: x(at), x2: x(at), y1: TOP - 4, y2: height }),
          h("text", { class: "tick-label", x: x(at), y: 12 }, tickLabel(at)),
        ]),
        rows.map(([name, row], index) => {
          const y = TOP + index * LANE;
          return [
            h("text", { class: "lane", x: 0, y: y + LANE / 2 + 4 }, shorten(name, label)),
            row.map((event) => bar(event, x, y + (LANE - BAR) / 2, time, end)),
          ];
        }),
        rows.length === 0 && h("text", { class: "lane", x: label, y: TOP + 17 }, "No events in this period."),
        h("line", { class: "now", x1: x(time), x2: x(time), y1: TOP - 6, y2: height }),
      ),
      h(
        "p",
        { class: "legend" },
        BARS.map(([style, name, title]) => h("span", { title }, h("i", { class: `key ${style}` }), name)),
        h("span", null, h("i", { class: "key not-before" }), "NotBefore"),
        h("span", null, h("i", { class: "key now" }), "now"),
        hidden > 0 && h("span", null, `${hidden} more event${hidden === 1 ? " is" : "s are"} not shown.`),
      ),
    );
  }
}

/** Divides events into rows in which no two of them overlap. Active events come first, the soonest at the top. */
function packed(events) {
  const rows = [];
  for (const event of [...events].sort((a, b) => a.created_at.localeCompare(b.created_at))) {
    const row = rows.find((each) => endOf(each.at(-1)) <= Date.parse(event.created_at));
    if (row) row.push(event);
    else rows.push([event]);
  }
  const order = (row) => `${row.at(-1).ended_at ? 1 : 0} ${row.at(-1).not_before}`;
  return rows.sort((a, b) => order(a).localeCompare(order(b)));
}

function endOf(event) {
  return event.ended_at ? Date.parse(event.ended_at) : Infinity;
}

function bar(event, x, y, time, end) {
  const isAdvisory = event.status === "advisory"; // It has no NotBefore, and lasts until it is cancelled.
  const notBefore = isAdvisory ? time : Date.parse(event.not_before);
  const created = Date.parse(event.created_at);
  const started = event.started_at && Date.parse(event.started_at);
  const noticeEnd = started ?? (event.ended_at ? Date.parse(event.ended_at) : notBefore);
  const finished = event.ended_at ? Date.parse(event.ended_at) : time;
  const title = `${event.type} of ${event.vms.slice(0, 5).join(", ")}: ${event.status}${isAdvisory ? "" : `, NotBefore ${clockTime(event.not_before)}`}`;
  const over = event.ended_at ? " ended" : "";
  return h(
    "a",
    { href: `/portal/events/${event.id}`, tabindex: -1, "aria-label": title, key: event.id },
    h("title", null, title),
    rect(`noticed${event.approved_at ? " approved" : ""}${over}`, x(created), x(noticeEnd), y),
    started && rect(`running${over}`, x(started), x(finished), y),
    !isAdvisory &&
      notBefore <= end &&
      (started || !event.ended_at) &&
      h("line", { class: "not-before", x1: x(notBefore), x2: x(notBefore), y1: y - 3, y2: y + BAR + 3 }),
    notBefore > end &&
      h("text", { class: "beyond", x: x(end) - 4, y: y + BAR - 3 }, `in ${duration(notBefore - time)} →`),
    h(
      "text",
      { class: "bar-label", x: Math.max(x(created), x(0)) + 4, y: y + BAR - 3 },
      x(noticeEnd) - x(created) > 60 ? event.type : "",
    ),
  );
}

const rect = (style, from, to, y) =>
  h("rect", { class: style, x: from, y, width: Math.max(to - from, 2), height: BAR, rx: 2 });

function ticks(begin, end, width) {
  const step = STEPS.find((each) => (end - begin) / each <= width / 90) ?? STEPS.at(-1);
  const found = [];
  for (let at = Math.ceil(begin / step) * step; at < end; at += step) found.push(at);
  return found;
}

/** The date at midnight, and otherwise the time of day. */
function tickLabel(at) {
  const [day, time] = new Date(at).toISOString().split("T");
  return time.startsWith("00:00") ? day : time.slice(0, 5);
}

function shorten(name, width) {
  const letters = Math.floor(width / 7.2) - 1;
  return name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
}

customElements.define("fw-timeline", Timeline);
