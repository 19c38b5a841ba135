// A form whose request is tried first: the service says what would happen, and only then the button is enabled.

import { create, post } from "./api.js";
import { h } from "./render.js";

const DELAY = 200; // Milliseconds after the last key, before the dry run.

/** The state of a form that is kept while its page is open. */
export class RequestForm {
  /** `path`: of the API; `body(values)`: of the request, or null if it is incomplete; `hint`: what is missing then;
      `describe(result)`: what would happen; `done(result)`: after success. */
  constructor(context, { path, values, body, hint = "", describe, done }) {
    Object.assign(this, { context, path, values, body, hint, describe, done });
    this.plan = null;
    this.problem = null;
    this.busy = false;
    this.number = 0;
    this.key = crypto.randomUUID();
    this.check();
  }

  set(name, value) {
    this.values = { ...this.values, [name]: value };
    this.plan = this.problem = null;
    this.number += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), DELAY);
    this.context.update();
  }

  /** Tries the request. Until the result arrives, the last one stays. */
  async check() {
    const number = ++this.number;
    const body = this.body(this.values);
    let [plan, problem] = [null, null];
    try {
      plan = body && (await post(this.path, { ...body, dry_run: true }));
    } catch (error) {
      problem = error;
    }
    if (number !== this.number) return; // A later change is being checked.
    Object.assign(this, { plan, problem });
    this.context.update();
  }

  async send() {
    if (!this.plan || this.busy) return;
    this.busy = true;
    this.context.update();
    const result = await this.context.act(() => create(this.path, this.body(this.values), this.key));
    this.busy = false;
    this.key = crypto.randomUUID();
    if (result) await this.done(result);
    else this.check();
    this.context.update();
  }

  view(fields, submit, style = "primary") {
    return h(
      "form",
      {
        class: "request",
        onsubmit: (happening) => {
          happening.preventDefault();
          this.send();
        },
      },
      h("div", { class: "fields" }, fields),
      h(
        "div",
        { class: `plan${this.problem ? " problem" : ""}`, "aria-live": "polite" },
        this.problem
          ? [h("h3", null, "Not possible"), h("p", null, this.problem.message)]
          : this.plan
            ? [h("h3", null, "What would happen"), this.describe(this.plan)]
            : h("p", { class: "muted" }, this.body(this.values) ? "Checking …" : this.hint),
      ),
      h(
        "p",
        { class: "buttons" },
        h("button", { type: "submit", class: style, disabled: !this.plan || this.busy }, submit),
      ),
    );
  }

  /** A field with its label. */
  field(name, label, props = {}, help = "") {
    const id = `field-${name}`;
    const input = {
      id,
      name,
      value: this.values[name] ?? "",
      "aria-describedby": help ? `${id}-help` : null,
      ...props,
    };
    return h(
      "p",
      { class: "field", key: name },
      h("label", { for: id }, label),
      props.options
        ? h(
            "select",
            { ...input, options: null, onchange: (happening) => this.set(name, happening.target.value) },
            props.options.map(([value, text]) => h("option", { value, key: value }, text ?? value)),
          )
        : h("input", {
            type: "text",
            autocomplete: "off",
            spellcheck: "false",
            ...input,
            oninput: (happening) => this.set(name, happening.target.value),
          }),
      help && h("span", { class: "help", id: `${id}-help` }, help),
    );
  }
}
