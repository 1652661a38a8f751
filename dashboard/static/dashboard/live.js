import { openStream } from "./requests.js";

// Follows the stream server, which says what kind of thing changed. While it cannot be reached, pages poll.

const POLL_SECONDS = 4;
const RECONNECT_MILLISECONDS = 3000;

export function startLive(panels) {
  const light = document.getElementById("live");
  let live = false;

  const show = (state, text, title) => {
    light.dataset.state = state;
    light.querySelector("b").textContent = text;
    light.title = title;
  };

  let source = null;
  let attempt = 0;
  let again = 0;
  const close = () => {
    attempt += 1;
    clearTimeout(again);
    source?.close();
    source = null;
  };
  const fail = () => {
    live = false;
    show("polling", "polling", `The stream server cannot be reached: this page asks every ${POLL_SECONDS} s instead`);
    close();
    again = setTimeout(connect, RECONNECT_MILLISECONDS);
  };
  const connect = async () => {
    close();
    if (document.hidden) return;
    const own = attempt;
    let opened;
    try {
      opened = await openStream(document.body.dataset.stream);
    } catch {
      if (own === attempt) fail();
      return;
    }
    if (own !== attempt) {
      opened.close();
      return;
    }
    source = opened;
    source.onopen = () => {
      live = true;
      show("live", "live", "Changes appear as they happen");
      panels.changed("resync");
    };
    source.onmessage = (message) => {
      const { kind } = JSON.parse(message.data);
      panels.changed(kind);
    };
    source.addEventListener("resync", () => panels.changed("resync"));
    source.onerror = fail;
  };

  connect();
  setInterval(() => panels.tick(live, POLL_SECONDS), 1000);
  // A browser keeps few connections to one host: pages that nobody looks at let theirs go.
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else connect(); });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
}
