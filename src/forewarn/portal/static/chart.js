// <fw-chart>: a small line chart of one metric.

import { h, render } from "./render.js";

const [WIDTH, HEIGHT] = [240, 48];

class Chart extends HTMLElement {
  /** `{name, times, values, format}`; a missing value is null. */
  set data({ name, times, values, format = String }) {
    const known = values.filter((value) => value !== null);
    const [last, highest] = [known.at(-1) ?? 0, Math.max(...known, 0)];
    const x = (index) => (index / Math.max(values.length - 1, 1)) * WIDTH;
    const y = (value) => HEIGHT - 2 - (highest ? value / highest : 0) * (HEIGHT - 6);
    const points = values.map((value, index) =>
      value === null ? "" : `${x(index).toFixed(1)},${y(value).toFixed(1)}`,
    );
    const since = times.length ? new Date(times[0]).toISOString().slice(11, 16) : "now"; // in real time
    const label = `${name}: ${format(last)} now, highest ${format(highest)} since ${since}.`;
    render(
      this,
      h("span", { class: "chart-name" }, name),
      h("strong", null, format(last)),
      h(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
        h("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
        h("polyline", { points: line(points.filter(Boolean)) }),
      ),
      h("span", { class: "muted" }, `highest ${format(highest)} since ${since}`),
    );
  }
}

/** One point alone is a short line. */
const line = (points) => (points.length === 1 ? [points[0], points[0]] : points).join(" ");

customElements.define("fw-chart", Chart);
