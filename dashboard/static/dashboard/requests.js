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
  const fields = Object.entries(body.errors || {}).map(([field, messages]) => `${field}: ${[].concat(messages).join(" ")}`);
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

export async function write(address, body, method = "POST") {
  const response = await fetch(address, {
    method,
    credentials: "same-origin",
    headers: {
      Accept: "application/json",
      "Content-Type": "application/json",
      "X-CSRFToken": document.body.dataset.csrf,
      "Idempotency-Key": crypto.randomUUID ? crypto.randomUUID() : `${Date.now()}-${Math.random()}`,
    },
    body: JSON.stringify(body || {}),
  });
  if (response.status === 401) toLogin();
  if (!response.ok) throw await problemOf(response);
  const text = await response.text();
  return text ? JSON.parse(text) : {};
}
