// Buttons that change something. They call the REST API, which decides whether the person may.
import { ask, element, field } from "./dialogs.js";
import { write } from "./requests.js";
import { toast } from "./toasts.js";

export async function attempt(button, panels, work) {
  button.disabled = true;
  try {
    await work();
    panels.changed("resync");
  } catch (error) {
    toast(error.message, "bad");
  } finally {
    button.disabled = false;
  }
}

async function post(button, panels) {
  const { post: address, method, body, title, text, yes, done, open } = button.dataset;
  if (title && !(await ask({ title, text, yes, danger: button.classList.contains("danger") }))) return;
  await attempt(button, panels, async () => {
    const answer = await write(address, body ? JSON.parse(body) : {}, method);
    if (open && !open.includes("{id}")) window.location.assign(open);
    else if (open && answer.id) window.location.assign(open.replace("{id}", encodeURIComponent(answer.id)));
    else toast(done || "Done.");
  });
}

async function changeDeadline(button, panels) {
  const minutes = element("input", { type: "number", min: "1", step: "any", required: true, inputMode: "decimal", name: "minutes" });
  const classes = element("select", { name: "service_class" }, [
    element("option", { value: "slo", textContent: "Hard: promised or declined" }),
    element("option", { value: "soft", textContent: "Soft: met if possible" }),
    element("option", { value: "best_effort", textContent: "Best effort: no deadline" }),
  ]);
  classes.value = button.dataset.class;
  const agree = () => { minutes.disabled = classes.value === "best_effort"; };
  classes.addEventListener("change", agree);
  agree();
  const sure = await ask({
    title: "Change the deadline",
    text: "If a tighter deadline cannot be promised, the old promise stays.",
    yes: "Change",
    build: (body) => { field(body, "Class", classes); field(body, "Minutes from now", minutes); },
  });
  if (!sure) return;
  await attempt(button, panels, async () => {
    const best = classes.value === "best_effort";
    const answer = await write(button.dataset.deadline, {
      service_class: classes.value,
      ...(best ? { deadline_at: null } : { deadline_seconds: Number(minutes.value) * 60 }),
    });
    const reason = answer.verdict?.reason || "";
    if (answer.changed === false) toast(`Not changed. ${reason}`, "bad");
    else toast(`Deadline changed. ${reason}`);
  });
}

function listOf(promises) {
  return element("ul", { className: "lines" }, promises.map((promise) => element("li", {
    textContent: typeof promise === "string" ? promise : [promise.name || promise.job_name || promise.job || promise.id || "a job of another project", promise.reason].filter(Boolean).join(": "),
  })));
}

// Sends what may break promises: refused with a list of them, it is sent once more after a second yes.
async function sendAgainstPromises(send, yes) {
  try {
    await send(false);
  } catch (problem) {
    const broken = problem.document?.broken_promises;
    if (problem.status !== 409 || !broken) throw problem;
    const force = await ask({
      title: "This would break promises",
      text: problem.message,
      yes,
      danger: true,
      build: (body) => body.append(listOf(broken)),
    });
    if (!force) return false;
    await send(true);
  }
  return true;
}

async function drain(button, panels) {
  const reason = element("input", { type: "text", maxLength: 300, name: "reason" });
  const sure = await ask({
    title: `Drain ${button.dataset.name}?`,
    text: "Its jobs move to other servers and it gets no new work.",
    yes: "Drain",
    build: (body) => field(body, "Reason", reason),
  });
  if (!sure) return;
  await attempt(button, panels, async () => {
    const send = (force) => write(button.dataset.drain, { force, reason: reason.value });
    if (await sendAgainstPromises(send, "Drain and break them")) toast(`${button.dataset.name} is being drained.`);
  });
}

// What an input of type datetime-local shows: the person's own clock, to the minute.
function localMinute(moment) {
  const own = new Date(moment.getTime() - moment.getTimezoneOffset() * 60000);
  return own.toISOString().slice(0, 16);
}

async function setEnd(button, panels) {
  const { end: address, name, until } = button.dataset;
  const moment = element("input", { type: "datetime-local", required: true, name: "available_until" });
  moment.min = localMinute(new Date());
  if (until) moment.value = localMinute(new Date(until));
  const sure = await ask({
    title: `When does ${name} leave?`,
    text: "Jobs move away in time, and no promise counts on it beyond that time.",
    yes: "Set the end",
    build: (body) => field(body, "Leaves at (your time)", moment),
  });
  if (!sure) return;
  await attempt(button, panels, async () => {
    const end = new Date(moment.value).toISOString();
    const send = (force) => write(address, { available_until: end, force }, "PATCH");
    if (await sendAgainstPromises(send, "Let it leave and break them")) toast(`${name} leaves at its end.`);
  });
}

export function startActions(panels) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button[data-post], button[data-deadline], button[data-drain], button[data-end]");
    if (!button) return;
    if (button.dataset.post) post(button, panels);
    else if (button.dataset.deadline) changeDeadline(button, panels);
    else if (button.dataset.end) setEnd(button, panels);
    else drain(button, panels);
  });
}
