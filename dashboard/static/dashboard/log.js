// The log of a job: its end at first, then piece by piece. Text is only ever added as text.
import { openStream, read } from "./requests.js";

const MAXIMUM_CHARACTERS = 400_000;
const POLL_MILLISECONDS = 4000;
const RECONNECT_MILLISECONDS = 3000;

export function startLog() {
  const box = document.getElementById("log");
  if (!box) return;
  const ranks = document.getElementById("log-rank");
  const follow = document.getElementById("log-follow");
  const known = [];
  const ids = new Set();
  let lastId = 0;
  let streaming = false;
  let finished = false;

  const shown = (chunk) => ranks.value === "" || String(chunk.rank) === ranks.value;
  const append = (chunk) => {
    const piece = document.createElement("span");
    piece.dataset.rank = chunk.rank;
    piece.textContent = chunk.text;
    box.append(piece);
  };
  const scroll = () => { if (follow.checked) box.scrollTop = box.scrollHeight; };

  const add = (chunk) => {
    // Two workers' pieces may come in another order than their numbers.
    if (ids.has(chunk.id)) return;
    ids.add(chunk.id);
    lastId = Math.max(lastId, chunk.id);
    known.push(chunk);
    document.getElementById("log-empty").hidden = true;
    if (![...ranks.options].some((option) => option.value === String(chunk.rank))) {
      ranks.append(new Option(String(chunk.rank), String(chunk.rank)));
    }
    if (shown(chunk)) append(chunk);
    let size = known.reduce((sum, piece) => sum + piece.text.length, 0);
    while (size > MAXIMUM_CHARACTERS && known.length > 1) {
      const dropped = known.shift();
      size -= dropped.text.length;
      if (shown(dropped)) box.firstChild?.remove();
    }
  };

  const poll = async () => {
    const answer = await (await read(`${box.dataset.log}${lastId ? `?after=${lastId}` : ""}`)).json();
    answer.chunks.forEach(add);
    finished = answer.finished;
    // Of a job that has ended without output, none will come.
    box.closest("section").hidden = finished && !known.length;
    if (answer.chunks.length) scroll();
  };

  let source = null;
  let attempt = 0;
  let again = 0;
  const close = () => {
    attempt += 1;
    clearTimeout(again);
    streaming = false;
    source?.close();
    source = null;
  };
  const fail = () => {
    close();
    if (!finished) again = setTimeout(connect, RECONNECT_MILLISECONDS);
  };
  const connect = async () => {
    close();
    if (document.hidden || finished) return;
    const own = attempt;
    let opened;
    try {
      opened = await openStream(box.dataset.logStream, { after: lastId });
    } catch {
      if (own === attempt) fail();
      return;
    }
    if (own !== attempt) {
      opened.close();
      return;
    }
    source = opened;
    source.onopen = () => { streaming = true; };
    source.onmessage = (message) => { add(JSON.parse(message.data)); scroll(); };
    source.addEventListener("end", () => { finished = true; close(); });
    source.onerror = fail;
  };
  // A browser keeps few connections to one host: pages that nobody looks at let theirs go.
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else connect(); });
  window.addEventListener("pagehide", close);

  ranks.addEventListener("change", () => {
    box.replaceChildren();
    known.filter(shown).forEach(append);
    scroll();
  });
  // Scrolling up means reading: the log stops running away.
  box.addEventListener("scroll", () => {
    if (box.scrollHeight - box.scrollTop - box.clientHeight > 80) follow.checked = false;
  });
  follow.addEventListener("change", scroll);

  poll().catch(() => { streaming = false; }).then(connect);
  setInterval(() => { if (!streaming && !finished && !document.hidden) poll().catch(() => { streaming = false; }); }, POLL_MILLISECONDS);
}
