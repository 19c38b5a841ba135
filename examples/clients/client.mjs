#!/usr/bin/env node
// Handles Azure Scheduled Events, on Azure and with Forewarn. Node.js 18.3 or newer, no packages.
//
// The program polls. For each event that names this VM, it prepares, approves, and reports the start and the end.

import { spawn } from "node:child_process";
import { once } from "node:events";
import http from "node:http";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";

const EVENTS = "/metadata/scheduledevents?api-version=2020-07-01";
const NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
const KNOWN_TYPES = ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"];
const FIRST_TIMEOUT = 130; // on Azure, the response to the first GET can take two minutes
const OLDER_SECONDS = 10; // a lower incarnation that stays this long is a new count; before, it may be an old document

const { values } = parseArgs({
  options: {
    endpoint: { type: "string", default: process.env.FOREWARN_ENDPOINT || "http://169.254.169.254" },
    name: { type: "string", default: "" }, // of this VM in events; empty: ask the endpoint
    run: { type: "string", default: "" }, // command that prepares this VM
    interval: { type: "string", default: "1" }, // seconds between polls
    timeout: { type: "string", default: "10" }, // seconds for a response
    repeat: { type: "string", default: "60" }, // seconds until the same approval again
  },
});
const endpoint = values.endpoint.replace(/\/$/, "");
const [interval, timeout, repeat] = [values.interval, values.timeout, values.repeat].map(Number);

const agent = new http.Agent(); // an agent of its own never uses a proxy
const tracked = new Map(); // events of this VM by EventId
let incarnation = -1; // of the last document; -1: none yet
let olderSince = null;
let problem = ""; // the last one, so that it is reported once

const now = () => performance.now() / 1000;

function say(step, event, detail = "") {
  console.log(`${step} ${event.EventType} ${event.EventId}${detail && `: ${detail}`}`);
}

// Prints a problem when it begins, not at each poll. An empty one means success.
function report(method, found) {
  const line = `retrying ${method}: ${found}`;
  if (found && line !== problem) console.error(line);
  if (found) problem = line;
  else if (problem.startsWith(`retrying ${method}:`)) problem = "";
}

// Returns the text of a response with status 200; null after any failure, which the next poll retries.
async function request(method, path, body) {
  const seconds = incarnation < 0 ? Math.max(timeout, FIRST_TIMEOUT) : timeout;
  const headers = { Metadata: "true", "Content-Type": "application/json" };
  const signal = AbortSignal.timeout(seconds * 1000);
  try {
    const sent = http.request(endpoint + path, { method, headers, agent, signal });
    sent.on("error", () => {}); // an error after the response has begun; the loop below throws it too
    sent.end(body);
    const [response] = await once(sent, "response");
    let text = "";
    for await (const chunk of response.setEncoding("utf8")) text += chunk;
    report(method, response.statusCode === 200 ? "" : `status ${response.statusCode}`);
    return response.statusCode === 200 ? text : null;
  } catch (error) {
    report(method, signal.aborted ? "timeout" : error.code || error.message);
    return null;
  }
}

// Returns the current document; null if there is none.
async function poll() {
  const text = await request("GET", EVENTS);
  if (text === null) return null;
  const isText = (value) => typeof value === "string";
  try {
    const document = JSON.parse(text);
    const valid = document.Events.every(
      (event) =>
        [event.EventId, event.EventType, event.EventStatus, event.NotBefore ?? ""].every(isText) &&
        Array.isArray(event.Resources),
    );
    if (valid && Number.isInteger(document.DocumentIncarnation)) return document;
  } catch {
    // reported below
  }
  report("GET", "malformed document");
  return null;
}

// Returns whether to read the document: it has another incarnation than the last one, and is not an old one.
function isNew(number) {
  if (number < incarnation) {
    olderSince ??= now();
    if (now() - olderSince < OLDER_SECONDS) return false;
  }
  const changed = number !== incarnation;
  [incarnation, olderSince] = [number, null];
  return changed;
}

async function handle(events, name) {
  const mine = events.filter((event) => event.Resources.includes(name));
  for (const [id, known] of tracked) {
    if (mine.some((event) => event.EventId === id)) continue;
    tracked.delete(id);
    say("ended", known);
  }
  for (const event of mine) {
    const known = tracked.get(event.EventId) ?? { ready: false, sent: -Infinity };
    if (known.EventStatus === event.EventStatus) continue;
    tracked.set(event.EventId, Object.assign(known, event));
    if (!KNOWN_TYPES.includes(event.EventType)) say("ignored", event, "unknown event type");
    else if (event.EventStatus === "Started") say("started", event);
    else if (event.EventStatus === "Scheduled") {
      say("scheduled", event, `not before ${event.NotBefore}`);
      known.ready = await prepare(event);
    }
  }
}

// Prepares this VM, once for each event. Returns whether to approve the event.
async function prepare(event) {
  if (values.run) {
    const details = { EVENT_ID: event.EventId, EVENT_TYPE: event.EventType, EVENT_NOT_BEFORE: event.NotBefore };
    const child = spawn(values.run, { shell: true, stdio: "inherit", env: { ...process.env, ...details } });
    const [code, signal] = await once(child, "exit");
    if (code !== 0) {
      say("not approved", event, `the command ended with ${code ?? signal}`);
      return false;
    }
  }
  say("prepared", event);
  if (event.Resources.length === 1) return true;
  say("not approved", event, "it names other VMs too"); // an approval would start the event for all of them
  return false;
}

// Approves prepared events; again if an event is still Scheduled after a while.
async function approve() {
  for (const [id, known] of tracked) {
    if (!known.ready || known.EventStatus !== "Scheduled" || now() - known.sent < repeat) continue;
    const body = JSON.stringify({ StartRequests: [{ EventId: id }] });
    if ((await request("POST", EVENTS, body)) === null) continue;
    known.sent = now();
    say("approved", known);
  }
}

for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => process.exit(0));
let name = values.name;
while (!name) {
  name = (await request("GET", NAME))?.trim();
  if (!name) await pause(interval * 1000);
}
console.log(`polling ${values.endpoint} as ${name}`);
for (;;) {
  const document = await poll();
  if (document) {
    if (isNew(document.DocumentIncarnation)) await handle(document.Events, name);
    await approve();
  }
  await pause(interval * 1000);
}
