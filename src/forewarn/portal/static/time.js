// The time of the service, and how the portal shows times. Times are UTC, as in the command line.

const clock = { virtual: false, offset: 0, now: 0 };
const tickers = new Set();

/** Takes the time from a response of /v1/clock. */
export function setClock({ now, clock: kind }) {
  clock.virtual = kind === "virtual";
  clock.now = Date.parse(now);
  clock.offset = clock.now - Date.now();
  tick();
}

export const now = () => (clock.virtual ? clock.now : Date.now() + clock.offset);
export const isVirtual = () => clock.virtual;

function tick() {
  for (const each of tickers) each.tick();
}

setInterval(() => {
  if (!clock.virtual && !document.hidden) tick();
}, 1000);
document.addEventListener("visibilitychange", () => document.hidden || tick());

/** An element that shows something that depends on the time. */
export class Ticking extends HTMLElement {
  connectedCallback() {
    tickers.add(this);
    this.tick();
  }

  disconnectedCallback() {
    tickers.delete(this);
  }
}

const pad = (number) => String(number).padStart(2, "0");

export function duration(milliseconds) {
  const seconds = Math.round(Math.abs(milliseconds) / 1000);
  const [d, hours, m, s] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  if (d) return `${d}d ${hours}h`;
  if (hours) return `${hours}h ${pad(m)}m`;
  return m ? `${m}m ${pad(s)}s` : `${s}s`;
}

/** A number of seconds, as the API writes durations: 1d2h, 14m50s. */
export function seconds(value) {
  if (value === null || value === undefined) return "";
  const parts = [
    ["d", 86400],
    ["h", 3600],
    ["m", 60],
    ["s", 1],
  ];
  let rest = Math.round(value);
  const found = parts.map(([unit, size]) => {
    const count = Math.floor(rest / size);
    rest -= count * size;
    return count ? `${count}${unit}` : "";
  });
  return found.join("") || "0s";
}

/** The time of day; with the date if it is another day. */
export function clockTime(text) {
  const date = new Date(text);
  const today = new Date(now()).toISOString().slice(0, 10);
  const [day, time] = date.toISOString().slice(0, 19).split("T");
  return day === today ? time : `${day} ${time}`;
}

export const fullTime = (text) => `${new Date(text).toISOString().slice(0, 19).replace("T", " ")} UTC`;

class Countdown extends Ticking {
  static observedAttributes = ["to", "mode"];

  attributeChangedCallback() {
    this.tick();
  }

  tick() {
    const to = Date.parse(this.getAttribute("to"));
    if (Number.isNaN(to)) return;
    const left = to - now();
    let text;
    if (this.getAttribute("mode") === "since") text = left < -500 ? `${duration(left)} ago` : "now";
    else text = left > 0 ? duration(left) : left > -2000 ? "now" : `${duration(left)} overdue`;
    if (this.textContent !== text) this.textContent = text;
  }
}
customElements.define("fw-countdown", Countdown);

class ServiceClock extends Ticking {
  tick() {
    const text = `${new Date(now()).toISOString().slice(0, 19).replace("T", " ")} UTC`;
    if (clock.now && this.textContent !== text) this.textContent = text;
  }
}
customElements.define("fw-clock", ServiceClock);
