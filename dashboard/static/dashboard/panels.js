// Figures and fragments of a page: fetched at once, again when something changed, and now and then anyway.
import { draw, say } from "./figures.js";
import { read } from "./requests.js";
import { refreshTimes } from "./times.js";

// A burst of changes draws a panel once, not once per change.
const SHORTEST_INTERVAL_MILLISECONDS = 1000;
// Also without any message a panel is never older than this.
const LONGEST_INTERVAL_SECONDS = 15;

class Panel {
  constructor(element) {
    this.element = element;
    this.kinds = new Set((element.dataset.refresh || "").split(" ").filter(Boolean));
    this.pollSeconds = Number(element.dataset.pollSeconds || LONGEST_INTERVAL_SECONDS);
    this.loadedAt = 0;
    this.busy = false;
    this.wanted = false;
    this.timer = null;
  }

  concerns(kind) {
    return kind === "resync" || this.kinds.has(kind);
  }

  // Nobody sees it, and a figure that is drawn there has no width. It is fetched when it is unfolded.
  isFolded() {
    return this.element.closest("details:not([open])") !== null;
  }

  refreshSoon() {
    if (this.isFolded()) return;
    if (this.busy || this.timer !== null) {
      this.wanted = this.wanted || this.busy;
      return;
    }
    const wait = Math.max(0, this.loadedAt + SHORTEST_INTERVAL_MILLISECONDS - Date.now());
    this.timer = setTimeout(() => { this.timer = null; this.refresh(); }, wait);
  }

  async refresh() {
    this.busy = true;
    try {
      await this.load();
      delete this.element.dataset.stale;
    } catch (error) {
      // What is shown stays, marked as old; the next round tries again.
      this.element.dataset.stale = "true";
      if (!(error instanceof TypeError)) this.failed(error);
    } finally {
      this.busy = false;
      this.loadedAt = Date.now();
      if (this.wanted) { this.wanted = false; this.refreshSoon(); }
    }
  }

  failed() {}
}

class FigurePanel extends Panel {
  async load() {
    const answer = await (await read(this.element.dataset.panel)).json();
    if (this.isFolded()) return;
    const figure = this.element.querySelector(".figure");
    this.latest = answer;
    // A panel that not every job has: its place on the page is hidden.
    this.element.parentElement.toggleAttribute("hidden", Boolean(answer.absent));
    if (answer.absent) {
      say(figure, "");
      return;
    }
    // A figure that is not always of the same thing brings its note along.
    const note = this.element.querySelector("[data-note]");
    if (note) note.textContent = answer.note || "";
    if (answer.figure) await draw(figure, answer.figure);
    else say(figure, answer.empty);
  }

  failed(error) {
    const figure = this.element.querySelector(".figure");
    if (!this.latest) say(figure, `This figure could not be read: ${error.message}`);
  }

  redraw() {
    if (this.latest?.figure && !this.isFolded()) draw(this.element.querySelector(".figure"), this.latest.figure);
  }
}

class FragmentPanel extends Panel {
  async load() {
    const query = new URLSearchParams(this.element.dataset.query ?? window.location.search);
    query.set("fragment", this.element.dataset.fragment);
    const text = await (await read(`${window.location.pathname}?${query}`)).text();
    // A page made by our own server, every value in it escaped there.
    if (text === this.latest || this.element.contains(document.activeElement?.closest?.("summary, input"))) return;
    this.latest = text;
    const open = new Set([...this.element.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent));
    this.element.innerHTML = text;
    for (const summary of this.element.querySelectorAll("details > summary")) {
      if (open.has(summary.textContent)) summary.parentElement.open = true;
    }
    refreshTimes(this.element);
  }
}

export function startPanels() {
  const figures = [...document.querySelectorAll("[data-panel]")].map((element) => new FigurePanel(element));
  const fragments = [...document.querySelectorAll("[data-fragment]")].map((element) => new FragmentPanel(element));
  const all = [...figures, ...fragments];
  for (const figure of figures) if (!figure.isFolded()) figure.refresh();
  for (const fragment of fragments) fragment.loadedAt = Date.now();
  for (const details of document.querySelectorAll("details:has([data-panel])")) {
    details.addEventListener("toggle", () => {
      if (!details.open) return;
      const unfolded = (panel) => details.contains(panel.element);
      // The window may have another width than when they were drawn.
      for (const figure of figures.filter(unfolded)) figure.redraw();
      for (const panel of all.filter(unfolded)) panel.refreshSoon();
    });
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => figures.forEach((figure) => figure.redraw()));
  return {
    changed(kind) {
      if (document.hidden && kind !== "resync") return;
      for (const panel of all) if (panel.concerns(kind)) panel.refreshSoon();
    },
    // Called every second; `live` says whether messages arrive.
    tick(live, pollSeconds) {
      if (document.hidden) return;
      for (const panel of all) {
        const limit = live ? panel.pollSeconds : Math.min(pollSeconds, panel.pollSeconds);
        if (!panel.busy && Date.now() - panel.loadedAt > limit * 1000) panel.refreshSoon();
      }
    },
  };
}
