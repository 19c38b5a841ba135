// Starts the portal: sign-in, navigation, the frame around the pages, and the live connection.

import { get, post, request, whenSignedOut } from "./api.js";
import { Live } from "./live.js";
import clock from "./pages/clock.js";
import event from "./pages/event.js";
import fleet from "./pages/fleet.js";
import group from "./pages/group.js";
import history from "./pages/history.js";
import host from "./pages/host.js";
import now from "./pages/now.js";
import rollout from "./pages/rollout.js";
import rollouts from "./pages/rollouts.js";
import service from "./pages/service.js";
import signIn from "./pages/sign_in.js";
import vm from "./pages/vm.js";
import { h, render } from "./render.js";
import { isVirtual, setClock } from "./time.js";

const ROLES = ["viewer", "operator", "admin"];
const OFTEN = 150; // Milliseconds between two loads of a page, if changes arrive one after the other.

const PAGES = [
  ["", now],
  ["events/:id", event],
  ["fleet", fleet],
  ["groups/:name", group],
  ["vms/:name", vm],
  ["hosts/:name", host],
  ["rollouts", rollouts],
  ["rollouts/:id", rollout],
  ["history", history],
  ["clock", clock],
  ["service", service],
].map(([path, page]) => ({ parts: path.split("/"), page }));

const NAVIGATION = [
  ["", "Now", () => true],
  ["fleet", "Fleet", () => true],
  ["rollouts", "Rollouts", () => !isTenant()],
  ["history", "History", () => true],
  ["clock", "Clock", () => isVirtual() && !isTenant()],
  ["service", "Service", () => !isTenant()],
];

const app = {
  session: null,
  connection: "connecting",
  current: null, // the page that is shown: {page, context, data, problem}
  notice: null,
  dialog: null,
};

const isTenant = () => app.session?.role === "tenant";

// --- Pages ----------------------------------------------------------------------------------------

function match(path) {
  const parts = path
    .replace(/^\/portal\/?/, "")
    .replace(/\/$/, "")
    .split("/");
  for (const candidate of PAGES) {
    if (candidate.parts.length !== parts.length) continue;
    const params = {};
    const fits = candidate.parts.every((wanted, index) => {
      if (!wanted.startsWith(":")) return wanted === parts[index];
      params[wanted.slice(1)] = decodeURIComponent(parts[index]);
      return parts[index] !== "";
    });
    if (fits) return { page: candidate.page, params };
  }
  return { page: notFound, params: {} };
}

const notFound = {
  title: () => "Page not found",
  load: async () => ({}),
  view: () => h("p", null, "The portal has no such page. ", h("a", { href: "/portal/" }, "Show what happens now.")),
  concerns: () => false,
};

/** What a page can use. A new one is made for each visit of a page. */
class Context {
  constructor(page, params, query) {
    Object.assign(this, { page, params, query, state: {} });
    this.session = app.session;
    this.controller = new AbortController();
  }

  get isTenant() {
    return isTenant();
  }

  /** Whether the user has at least this role. */
  can(role) {
    return !isTenant() && ROLES.indexOf(app.session.role) >= ROLES.indexOf(role);
  }

  get canApprove() {
    return isTenant() || this.can("operator");
  }

  update() {
    if (app.current?.context === this) show();
  }

  reload() {
    return load(app.current);
  }

  /** Runs an action of the user. Its problem, or its result, is shown above the page. */
  async act(action, done) {
    app.notice = null;
    try {
      const result = await action();
      if (done) notify(typeof done === "function" ? done(result) : done);
      return result;
    } catch (problem) {
      notify(problem.message, "problem");
      return undefined;
    }
  }

  /** Changes the query of the address, so that the address stays a permanent link to what is shown. */
  setQuery(changes) {
    const address = new URL(location);
    for (const [name, value] of Object.entries(changes)) {
      address.searchParams.delete(name);
      for (const each of [value].flat()) if (each) address.searchParams.append(name, each);
    }
    window.history.replaceState(null, "", address);
    this.query = address.searchParams;
  }

  navigate(path) {
    navigate(path);
  }

  open(dialog) {
    app.dialog = dialog;
    show();
  }

  close() {
    document.querySelector("dialog")?.close(); // The focus returns to where it was.
    app.dialog = null;
    show();
  }
}

export function navigate(path) {
  window.history.pushState(null, "", path);
  visit();
}

async function visit() {
  app.current?.context.controller.abort();
  app.notice = null;
  app.dialog = null;
  const { page, params } = match(location.pathname);
  const current = {
    page,
    context: new Context(page, params, new URLSearchParams(location.search)),
    data: null,
    problem: null,
  };
  app.current = current;
  live.follow(new Set(["clock", ...(isTenant() ? [] : (page.topics ?? []))]));
  show();
  await live.tried;
  await load(current);
  if (app.current !== current) return;
  window.scrollTo(0, 0);
  document.querySelector("h1").focus();
}

async function load(current) {
  const { page, context } = current;
  current.loading = true;
  current.stale = false;
  try {
    current.data = await page.load(context);
    current.problem = null;
  } catch (problem) {
    if (problem.name === "AbortError" || problem.status === 401) return;
    // What is shown stays, if only the connection is lost.
    if (!(problem.status === 0 && current.data)) current.problem = problem;
  } finally {
    current.loading = false;
  }
  if (app.current !== current) return;
  show();
  if (current.stale) changed();
}

/** Loads the page again, because something has changed: at once, but not all the time. */
function changed() {
  const current = app.current;
  if (!current) return;
  current.stale = true;
  if (current.loading || current.timer) return;
  const wait = Math.max(0, OFTEN - (Date.now() - (current.loadedAt ?? 0)));
  current.timer = setTimeout(() => {
    current.timer = null;
    current.loadedAt = Date.now();
    if (app.current === current) load(current);
  }, wait);
}

// --- The live connection ---------------------------------------------------------------------------

const live = new Live({
  row(row) {
    announce(row);
    const { page, context } = app.current ?? {};
    if (page && (page.concerns?.(row, context) ?? true)) changed();
  },
  topic(name, data) {
    if (name === "clock") setClock(data);
    const { page, context } = app.current ?? {};
    page?.topic?.(name, data, context, app.current.data);
    show();
  },
  state(state) {
    const was = app.connection;
    app.connection = state;
    if (state === "open" && was === "lost") {
      get("clock").then(setClock, () => {});
      changed();
    }
    show();
  },
  gap: changed,
  signedOut: () => get("session").catch(signedOut),
});

const SPOKEN = new Set([
  "scheduled",
  "approved",
  "started",
  "completed",
  "cancelled",
  "postponed",
  "failed",
  "unhealthy",
  "rollout-stopped",
]);

function announce(row) {
  if (!SPOKEN.has(row.kind) || !row.type) return;
  document.getElementById("announcements").textContent = `${row.type} of ${row.vms.slice(0, 3).join(", ")} ${row.kind}`;
}

// --- The frame --------------------------------------------------------------------------------------

let noticeTimer;

function notify(text, kind = "done") {
  app.notice = { text, kind };
  clearTimeout(noticeTimer);
  if (kind === "done") {
    noticeTimer = setTimeout(() => {
      app.notice = null;
      show();
    }, 6000);
  }
  show();
}

let pending = false;

function show() {
  if (pending) return;
  pending = true;
  queueMicrotask(() => {
    pending = false;
    draw();
  });
}

function draw() {
  const focused = document.activeElement;
  drawPage(document.getElementById("app"));
  // The button that the user pressed has gone: the keyboard continues at the top of the page.
  if (!focused.isConnected) document.querySelector("#token, h1").focus({ preventScroll: true });
}

function drawPage(root) {
  if (!app.session) {
    document.title = "Sign in · Forewarn";
    render(root, signIn.view({ signIn: start, problem: app.signInProblem }));
    return;
  }
  const { page, context, data, problem } = app.current;
  const title = page.title(data, context);
  document.title = `${title} · ${app.session.service} · Forewarn`;
  render(
    root,
    header(),
    app.connection === "lost" &&
      h(
        "p",
        { class: "banner", role: "alert" },
        "The connection to the service is lost. This page shows the last known state. Reconnecting …",
      ),
    h(
      "main",
      { id: "main", tabindex: -1 },
      app.notice &&
        h(
          "p",
          { class: `notice ${app.notice.kind}`, role: app.notice.kind === "problem" ? "alert" : "status" },
          app.notice.text,
          " ",
          h(
            "button",
            {
              class: "plain",
              onclick: () => {
                app.notice = null;
                show();
              },
              "aria-label": "Close this message",
            },
            "✕",
          ),
        ),
      h("h1", { tabindex: -1 }, page.heading?.(data, context) ?? title),
      problem
        ? h("p", { class: "notice problem", role: "alert" }, problem.message)
        : data
          ? page.view(data, context)
          : h("p", { class: "muted" }, "Loading …"),
    ),
    app.dialog && dialog(app.dialog, context),
  );
}

function header() {
  const here = location.pathname.replace(/^\/portal\/?/, "").split("/")[0];
  const section = { events: "", vms: "fleet", hosts: "fleet", groups: "fleet" }[here] ?? here;
  return h(
    "header",
    null,
    h("a", { class: "brand", href: "/portal/" }, h("strong", null, "Forewarn"), h("span", null, app.session.service)),
    h(
      "nav",
      { "aria-label": "Pages" },
      NAVIGATION.filter(([, , visible]) => visible()).map(([path, name]) =>
        h("a", { href: `/portal/${path}`, "aria-current": path === section ? "page" : null, key: path }, name),
      ),
    ),
    h(
      "span",
      { class: "clock", title: isVirtual() ? "The virtual clock of the service" : "The clock of the service" },
      h("fw-clock", null),
      isVirtual() && h("span", { class: "tag" }, "virtual"),
    ),
    h(
      "span",
      { class: `connection ${app.connection}`, role: "status" },
      h("i", { "aria-hidden": "true" }),
      { open: "live", connecting: "connecting", lost: "disconnected" }[app.connection],
    ),
    h(
      "span",
      { class: "user" },
      `${app.session.name} (${app.session.role}${app.session.group ? ` of ${app.session.group}` : ""})`,
      " ",
      h("button", { class: "plain", onclick: signOut }, "Sign out"),
    ),
  );
}

/** A modal dialog: `{title, view(context), confirm, danger, disabled(), run()}`. */
function dialog(spec, context) {
  return h(
    "dialog",
    {
      key: "dialog",
      "aria-labelledby": "dialog-title",
      ".opened": true,
      oncancel: (happening) => {
        happening.preventDefault();
        context.close();
      },
    },
    h(
      "form",
      {
        method: "dialog",
        onsubmit: async (happening) => {
          happening.preventDefault();
          if (!spec.disabled?.()) {
            context.close();
            await context.act(spec.run, spec.done);
          }
        },
      },
      h("h2", { id: "dialog-title" }, spec.title),
      spec.view(context),
      h(
        "p",
        { class: "buttons" },
        h("button", { type: "button", onclick: () => context.close() }, "Back"),
        h(
          "button",
          { type: "submit", class: spec.danger ? "danger" : "primary", disabled: spec.disabled?.() },
          spec.confirm,
        ),
      ),
    ),
  );
}

Object.defineProperty(HTMLDialogElement.prototype, "opened", {
  set(value) {
    if (value) queueMicrotask(() => this.isConnected && !this.open && this.showModal());
  },
});

// --- Start and end of a session ------------------------------------------------------------------------

function signedOut(problem) {
  if (!app.session) return;
  app.session = null;
  app.signInProblem = problem?.message ?? "";
  app.current?.context.controller.abort();
  live.stop();
  draw();
}

async function signOut() {
  await request("DELETE", "session").catch(() => {});
  signedOut();
}

/** Starts with a token, with the code of a one-time link, or with the session of the cookie. */
async function start(credentials) {
  app.signInProblem = "";
  try {
    const [session, clock] = credentials
      ? [await post("session", credentials), await get("clock")]
      : await Promise.all([get("session"), get("clock")]);
    app.session = session;
    setClock(clock);
  } catch (problem) {
    app.session = null;
    app.signInProblem = credentials || problem.status !== 401 ? problem.message : "";
    draw();
    return;
  }
  live.reset();
  await visit();
}

whenSignedOut(signedOut);
document.addEventListener("click", (click) => {
  const link = click.target.closest?.("a[href^='/portal/']");
  if (
    !link ||
    click.defaultPrevented ||
    click.button ||
    click.metaKey ||
    click.ctrlKey ||
    click.shiftKey ||
    link.target ||
    link.hasAttribute("download")
  )
    return;
  click.preventDefault();
  const href = link.getAttribute("href");
  if (href !== location.pathname + location.search) navigate(href);
});
addEventListener("popstate", () => app.session && visit());

const code = new URLSearchParams(location.hash.slice(1)).get("code");
if (code) window.history.replaceState(null, "", location.pathname);
start(code ? { code } : undefined);
