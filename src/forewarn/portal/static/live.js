// The feed: every change of the service, in order and without gaps, over one connection.

import { url } from "./api.js";

const SILENCE = 40_000; // The service sends something at least every 15 seconds.
const LONGEST_DELAY = 10_000;

export class Live {
  /** `on`: `row(row)`, `topic(name, data)`, `state("connecting" | "open" | "lost")`, `gap()`, `signedOut()`. */
  constructor(on) {
    this.on = on;
    this.topics = "";
    this.failures = 0;
    this.controller = null;
    this.reset();
  }

  /** Starts again with new rows only, for another session. */
  reset() {
    this.last = "";
    /** Resolved when the first connection is open, or has failed. What is loaded after that misses no change. */
    this.tried = new Promise((resolve) => {
      this.onTried = resolve;
    });
  }

  /** Follows history and these topics. Another set of topics continues after the last received row. */
  follow(topics) {
    const wanted = [...topics].sort().join();
    if (this.controller && wanted === this.topics) return;
    this.topics = wanted;
    this.stop();
    this.run((this.controller = new AbortController()));
  }

  stop() {
    clearTimeout(this.retry);
    clearTimeout(this.silence);
    this.controller?.abort();
    this.controller = null;
  }

  async run(controller) {
    const { signal } = controller;
    try {
      const headers = this.last ? { "last-event-id": this.last } : {};
      const query = { include: this.topics ? this.topics.split(",") : [] };
      const response = await fetch(url("feed", query), { headers, signal, cache: "no-store" });
      if (response.status === 401) return this.on.signedOut();
      if (response.status >= 400 && response.status < 500 && this.last) {
        this.last = ""; // The rows since then no longer exist: load everything again.
        this.on.gap();
      }
      if (!response.ok) throw new Error(`status ${response.status}`);
      this.failures = 0;
      this.onTried();
      this.on.state("open");
      await this.read(response.body.getReader(), controller);
    } catch {
      // Reconnect below.
    }
    this.onTried();
    if (signal.aborted && this.controller !== controller) return;
    this.on.state("lost");
    const delay = Math.min(250 * 2 ** this.failures++, LONGEST_DELAY);
    this.retry = setTimeout(
      () => this.run((this.controller = new AbortController())),
      delay * (0.75 + Math.random() / 2),
    );
  }

  async read(reader, controller) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      clearTimeout(this.silence);
      this.silence = setTimeout(() => controller.abort(), SILENCE);
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.take(block);
    }
  }

  take(block) {
    const fields = {};
    for (const line of block.split("\n")) {
      const colon = line.indexOf(":");
      if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
    }
    if (fields.data !== undefined) {
      const data = JSON.parse(fields.data);
      if (fields.id === undefined) this.on.topic(fields.event, data);
      else this.on.row(data);
    }
    if (fields.id !== undefined) this.last = fields.id;
  }
}
