// Requests to pages (reads) and to the REST API (writes, with the session's CSRF token).

export class Problem extends Error {
  constructor(status, document_) {
    super(document_.detail || document_.title || `The server answered ${status}.`);
    this.status = status;
    this.document = document_;
  }
}

async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // Not a problem document (a proxy's error page, say): the status has to do.
  }
  const fields = Object.entries(body.errors || {})
    .map(([field, messages]) => [field, [].concat(messages).join(" ")])
    .filter(([, text]) => text !== body.detail)
    .map(([field, text]) => `${field}: ${text}`);
  if (fields.length) body.detail = [body.detail, ...fields].filter(Boolean).join(" ");
  return new Problem(response.status, body);
}

function toLogin() {
  window.location.assign(`/login/?next=${encodeURIComponent(window.location.pathname + window.location.search)}`);
}

export async function read(address) {
  const response = await fetch(address, { credentials: "same-origin", headers: { Accept: "application/json, text/html" } });
  if (response.status === 401) {
    toLogin();
    throw new Problem(401, { detail: "Your session has ended." });
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

// Opens a stream of the stream server with a ticket of its own: another origin never gets the session's cookie.
// A ticket opens once, so whoever comes back asks for another one.
export async function openStream(stream, query = {}) {
  const { address } = await (await read(`/stream-address/?${new URLSearchParams({ stream })}`)).json();
  const url = new URL(address);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return new EventSource(url);
}

// A page that is not served over HTTPS has no crypto.randomUUID.
export function newId() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const digits = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [digits.slice(0, 8), digits.slice(8, 12), digits.slice(12, 16), digits.slice(16, 20), digits.slice(20)].join("-");
}

export async function write(address, body, method = "POST") {
  const response = await fetch(address, {
    method,
    credentials: "same-origin",
    headers: {
      Accept: "application/json",
      "Content-Type": "application/json",
      "X-CSRFToken": document.body.dataset.csrf,
      "Idempotency-Key": newId(),
    },
    body: JSON.stringify(body || {}),
  });
  if (response.status === 401) toLogin();
  if (!response.ok) throw await problemOf(response);
  const text = await response.text();
  return text ? JSON.parse(text) : {};
}
