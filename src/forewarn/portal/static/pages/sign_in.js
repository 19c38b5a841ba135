// Sign in with a token. A one-time link signs in without this page.

import { h } from "../render.js";

export default {
  view({ signIn, problem }) {
    return h(
      "main",
      { id: "main", class: "sign-in" },
      h("h1", null, "Forewarn"),
      h("p", null, "Sign in with a token of the control API."),
      problem && h("p", { class: "notice problem", role: "alert" }, problem),
      h(
        "form",
        {
          onsubmit: (happening) => {
            happening.preventDefault();
            const field = happening.target.elements.token;
            const token = field.value.trim();
            field.value = "";
            if (token) signIn({ token });
          },
        },
        h("label", { for: "token" }, "Token"),
        h("input", { id: "token", name: "token", type: "password", autocomplete: "current-password", required: true }),
        h("button", { type: "submit", class: "primary" }, "Sign in"),
      ),
      h(
        "p",
        { class: "muted" },
        "Or run ",
        h("code", null, "forewarn portal"),
        " on the machine of the service. It opens a link that is valid once, for a minute.",
      ),
    );
  },
};
