// The virtual clock: the current time, and moving it.

import { get, post } from "../api.js";
import { button, facts, time } from "../parts.js";
import { h } from "../render.js";
import { fullTime, isVirtual, setClock } from "../time.js";

const STEPS = ["1m", "5m", "15m", "1h", "1d"];

export default {
  title: () => "Clock",

  async load({ controller: { signal } }) {
    const clock = await get("clock", {}, signal);
    setClock(clock);
    return clock;
  },

  topic: (name) => (name === "clock" ? "load" : undefined),

  view(clock, context) {
    const advance = (body) =>
      context.act(
        async () => {
          const moved = await post("clock/advance", body);
          setClock(moved);
          await context.reload();
          return moved;
        },
        (moved) => `It is ${fullTime(moved.now)}.`,
      );
    if (!isVirtual())
      return h(
        "p",
        null,
        "This service uses the system clock. Start it with --clock virtual to move the time yourself.",
      );
    const next = clock.next_due;
    return [
      h("p", { class: "big" }, h("fw-clock", null)),
      facts(
        [
          ["Next due", next ? [time(next.time), `: ${next.description}`] : "nothing"],
          ["Speed", `notices are ${clock.speed} times shorter`],
        ].filter(([name]) => name !== "Speed" || clock.speed !== 1),
      ),
      context.can("operator") && [
        h(
          "p",
          { class: "buttons" },
          button("Advance to the next due item", () => advance({ to: "next" }), { style: "primary", disabled: !next }),
          STEPS.map((step) => button(`+ ${step}`, () => advance({ by: step }), { label: `Advance by ${step}` })),
        ),
        h(
          "form",
          {
            class: "filters",
            onsubmit: (happening) => {
              happening.preventDefault();
              advance({ by: happening.target.elements.by.value.trim() });
            },
          },
          h(
            "p",
            { class: "field" },
            h("label", { for: "by" }, "Advance by"),
            h("input", { id: "by", name: "by", required: true, placeholder: "14m50s", autocomplete: "off" }),
          ),
          h("p", { class: "buttons" }, h("button", { type: "submit" }, "Advance")),
        ),
        h(
          "p",
          { class: "muted" },
          "The clock stands still until somebody moves it. Everything that is due in between happens in order.",
        ),
      ],
    ];
  },
};
