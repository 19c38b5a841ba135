// What a user can do with an event.

import { causes, post } from "./api.js";
import { button, links, time, vmLink } from "./parts.js";
import { h } from "./render.js";

/** Returns the names of the causes whose events can be postponed. */
export async function routineCauses(context) {
  const known = context.can("operator") ? await causes() : [];
  return new Set(known.filter((cause) => cause.routine).map((cause) => cause.name));
}

/** The buttons for an event with its cause. `what` names the event, if the page has several. An advisory never starts,
    so nobody approves it. */
export function eventButtons(context, event, routine, what = "") {
  if (event.status !== "scheduled" && event.status !== "advisory") return [];
  const label = (text) => ({ label: what && `${text} ${what}` });
  const approve = () => context.act(() => post(`events/${event.id}/approve`), `Approved ${what || "the event"}.`);
  const isOpen = event.status === "scheduled" && event.approved_at === null;
  return [
    context.canApprove && isOpen && button("Approve", approve, { style: "primary", ...label("Approve") }),
    routine.has(event.cause) && button("Postpone", () => postponeEvent(context, event), label("Postpone")),
    context.can("operator") && button("Cancel", () => cancelEvent(context, event), label("Cancel")),
  ].filter(Boolean);
}

function cancelEvent(context, event) {
  context.open({
    title: `Cancel this ${event.type}?`,
    view: () =>
      h(
        "p",
        null,
        "It disappears from the documents of ",
        links(event.vms, vmLink),
        ". The operation and all its events are cancelled.",
      ),
    confirm: "Cancel the event",
    danger: true,
    run: () => post(`events/${event.id}/cancel`),
    done: `Cancelled ${event.type} of ${event.vms[0]}.`,
  });
}

/** Asks for how long. The service checks each value before the button is enabled. */
function postponeEvent(context, event) {
  const form = { by: "30m", result: null, problem: null, number: 0 };
  const check = async () => {
    const number = ++form.number;
    form.result = form.problem = null;
    try {
      const result = await post(`events/${event.id}/postpone`, { by: form.by, dry_run: true });
      if (number === form.number) form.result = result;
    } catch (problem) {
      if (number === form.number) form.problem = problem;
    }
    context.update();
  };
  context.open({
    title: `Postpone this ${event.type}`,
    view: () => [
      h(
        "p",
        { class: "field" },
        h("label", { for: "postpone-by" }, "By"),
        h("input", {
          id: "postpone-by",
          value: "30m",
          autocomplete: "off",
          "aria-describedby": "postpone-result",
          oninput: (happening) => {
            form.by = happening.target.value;
            check();
          },
        }),
        h("span", { class: "help" }, "A duration, such as 30m, 2h or 1d"),
      ),
      h(
        "p",
        { id: "postpone-result", "aria-live": "polite" },
        form.problem
          ? h("span", { class: "problem-text" }, form.problem.message)
          : form.result
            ? [
                "NotBefore moves from ",
                time(event.not_before),
                " to ",
                h("strong", null, time(form.result.not_before)),
                ".",
              ]
            : "Checking …",
      ),
    ],
    confirm: "Postpone",
    disabled: () => !form.result,
    run: () => post(`events/${event.id}/postpone`, { by: form.by }),
    done: (result) => ["NotBefore is now ", time(result.not_before), "."],
  });
  check();
}
