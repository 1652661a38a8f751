// Short messages in a corner. Text only: whatever a server or a function said is never read as HTML.

const LASTING_MILLISECONDS = 6000;

export function toast(text, kind = "good") {
  const box = document.getElementById("toasts");
  const note = document.createElement("div");
  note.className = `toast ${kind}`;
  note.setAttribute("role", kind === "bad" ? "alert" : "status");
  const words = document.createElement("span");
  words.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "plain small";
  close.setAttribute("aria-label", "Close");
  close.textContent = "×";
  close.addEventListener("click", () => note.remove());
  note.append(words, close);
  box.append(note);
  // Errors stay until they are read.
  if (kind !== "bad") setTimeout(() => note.remove(), LASTING_MILLISECONDS);
}
