// Lending and asking back by hand. An order's id is made here: sent twice, it is still one order.
import { attempt } from "./actions.js";
import { ask, element, field } from "./dialogs.js";
import { newId, write } from "./requests.js";
import { toast } from "./toasts.js";

const MOST_ROWS = 8;

function servers(count) {
  return `${count} server${count === 1 ? "" : "s"}`;
}

async function lend(button, panels) {
  const names = button.dataset.servers.split(" ").filter(Boolean);
  const chosen = element("select", { multiple: true, required: true, name: "servers", size: Math.min(MOST_ROWS, Math.max(2, names.length)) },
    names.map((name) => element("option", { value: name, textContent: name })));
  const sure = await ask({
    title: "Lend servers to training",
    text: "Either all chosen servers are lent or none. The reserve is never lent.",
    yes: "Lend",
    build: (body) => field(body, "Servers at home", chosen),
  });
  if (!sure) return;
  const picked = [...chosen.selectedOptions].map((option) => option.value);
  await attempt(button, panels, async () => {
    await write(button.dataset.lend, { id: newId(), servers: picked });
    toast(`${servers(picked.length)} offered to training.`);
  });
}

async function askBack(button, panels) {
  const count = element("input", { type: "number", min: "1", step: "1", value: "1", required: true, inputMode: "numeric", name: "count" });
  const minutes = element("input", { type: "number", min: "0", step: "any", value: "0", required: true, inputMode: "decimal", name: "minutes" });
  const sure = await ask({
    title: "Ask servers back",
    text: `${servers(Number(button.dataset.onLoan))} on loan. The platform chooses those that stop the fewest jobs.`,
    yes: "Ask back",
    build: (body) => { field(body, "Servers", count); field(body, "Wanted in minutes", minutes); },
  });
  if (!sure) return;
  const wait = Number(minutes.value) * 60_000;
  await attempt(button, panels, async () => {
    const order = { id: newId(), count: Number(count.value), ...(wait > 0 ? { wanted_by: new Date(Date.now() + wait).toISOString() } : {}) };
    await write(button.dataset.askBack, order);
    toast(`${servers(order.count)} asked back.`);
  });
}

export function startLending(panels) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button[data-lend], button[data-ask-back]");
    if (!button) return;
    if (button.dataset.lend) lend(button, panels);
    else askBack(button, panels);
  });
}
