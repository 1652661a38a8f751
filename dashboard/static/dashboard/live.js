// Follows the stream server, which says what kind of thing changed. While it cannot be reached, pages poll.

const POLL_SECONDS = 4;
const RECONNECT_MILLISECONDS = 3000;

export function startLive(panels) {
  const address = document.body.dataset.stream;
  const light = document.getElementById("live");
  let live = false;

  const show = (state, text, title) => {
    light.dataset.state = state;
    light.querySelector("b").textContent = text;
    light.title = title;
  };

  let source = null;
  const connect = () => {
    if (document.hidden) return;
    source?.close();
    source = new EventSource(address, { withCredentials: true });
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
    source.onerror = () => {
      live = false;
      show("polling", "polling", `The stream server cannot be reached: this page asks every ${POLL_SECONDS} s instead`);
      // A browser gives up after some errors (an HTTP status, say); we do not.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, RECONNECT_MILLISECONDS);
    };
  };

  connect();
  setInterval(() => panels.tick(live, POLL_SECONDS), 1000);
  // A browser keeps few connections to one host: pages that nobody looks at let theirs go.
  document.addEventListener("visibilitychange", () => { if (document.hidden) source?.close(); else connect(); });
  window.addEventListener("pagehide", () => source?.close());
  window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
}
