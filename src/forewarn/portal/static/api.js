// Requests to the control API. The session cookie authenticates them.

export class Problem extends Error {
  constructor(status, details) {
    super(details.detail ?? `The service answered with status ${status}.`);
    this.status = status;
    this.pointer = details.pointer ?? details.parameter ?? "";
  }
}

let onSignedOut = () => {};

export function whenSignedOut(callback) {
  onSignedOut = callback;
}

/** Sends a request, and returns the JSON of the response. A problem of the service is thrown as `Problem`. */
export async function request(method, path, { query, body, headers = {}, signal } = {}) {
  const options = { method, headers: { accept: "application/json", ...headers }, signal, cache: "no-cache" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(url(path, query), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The service cannot be reached. The request may not have been processed." });
  }
  if (response.ok) return response.status === 204 ? null : response.json();
  const problem = new Problem(response.status, await response.json().catch(() => ({})));
  if (response.status === 401 && path !== "session") onSignedOut(problem);
  throw problem;
}

export const get = (path, query, signal) => request("GET", path, { query, signal });
export const post = (path, body = {}, headers) => request("POST", path, { body, headers });

/** Sends a request that creates something. If the user repeats it with the same key, it has no second effect. */
export const create = (path, body, key) => post(path, body, { "idempotency-key": key });

export function url(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of [value].flat())
      if (each !== undefined && each !== null && each !== "") parameters.append(name, each);
  }
  const text = parameters.toString();
  return `/v1/${path}${text ? `?${text}` : ""}`;
}

export const part = encodeURIComponent;

let known;

/** Returns the causes that an operation can have. They do not change while the service runs. */
export function causes() {
  known ??= get("causes").then(
    (found) => found.causes,
    (problem) => {
      known = undefined;
      throw problem;
    },
  );
  return known;
}
