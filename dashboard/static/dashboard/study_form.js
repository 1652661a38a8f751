// The form for a new study: fills in the cluster that belongs to the jobs, and starts the runs by the REST API.
import { write } from "./requests.js";

const WHOLE = ["gpus_per_server", "limit_jobs", "reserve_servers", "seed"];
const FRACTIONS = ["slot_seconds", "failures_per_server_day", "best_effort_share"];

function numbers(form, name, least) {
  const parts = form.elements[name].value.split(",").map((part) => part.trim()).filter((part) => part !== "");
  return parts.map(Number).filter((count) => count >= least);
}

function chosenServers(form) {
  return numbers(form, "servers", 1);
}

// Without any number nothing is lent.
function chosenInference(form) {
  return numbers(form, "inference_servers", 0);
}

function lends(form) {
  return chosenInference(form).some((count) => count > 0);
}

function chosenBoxes(form) {
  return [...form.querySelectorAll("input[name=policies]:checked")];
}

function chosenPolicies(form) {
  return chosenBoxes(form).map((box) => box.value);
}

// None chosen: open, or as the live cluster has it.
function chosenNewcomers(form) {
  return [...form.querySelectorAll("input[name=newcomers]:checked")].map((box) => box.value);
}

// Policies that use no borrowed servers are run once for each number of servers, without loans; those that keep no room for
// newcomers once, with open ones.
function countRuns(form) {
  const lent = new Set(chosenInference(form)).size || 1;
  const rules = chosenNewcomers(form).length || 1;
  const each = chosenBoxes(form).map((box) => (lends(form) && !("borrows" in box.dataset) ? 1 : lent) * ("prices" in box.dataset ? rules : 1));
  return new Set(chosenServers(form)).size * each.reduce((sum, runs) => sum + runs, 0);
}

function loansOf(form) {
  const asked = { inference_servers: chosenInference(form) };
  if (!lends(form)) return asked;
  for (const name of ["inference_usage", "reclaim", "forecaster", "inference_gpu_type"]) {
    const text = form.elements[name].value.trim();
    if (text !== "") asked[name] = text;
  }
  if (form.elements.headroom.value.trim() !== "") asked.headroom = Number(form.elements.headroom.value);
  return asked;
}

function tellOfLoans(form) {
  const lent = lends(form);
  for (const label of form.querySelectorAll("[data-lent]")) label.hidden = !lent;
  const alone = chosenBoxes(form).filter((box) => !("borrows" in box.dataset)).map((box) => box.value);
  const note = form.querySelector("[data-alone]");
  note.hidden = !lent || alone.length === 0;
  note.textContent = `Run without loans, because borrowed servers are of no use to them: ${alone.join(", ")}.`;
}

function tellOfNewcomers(form) {
  const plain = chosenBoxes(form).filter((box) => !("prices" in box.dataset)).map((box) => box.value);
  const note = form.querySelector("[data-plain]");
  note.hidden = !chosenNewcomers(form).includes("prudent") || plain.length === 0;
  note.textContent = `Run with open newcomers alone, because they keep no room: ${plain.join(", ")}.`;
}

function shown(form, name) {
  const label = form.elements[name].closest("[data-for]");
  return !label || !label.hidden;
}

function bodyOf(form) {
  const live = form.elements.source.value === "live";
  const body = { source: form.elements.source.value, policies: chosenPolicies(form), servers: chosenServers(form), newcomers: chosenNewcomers(form), bound: form.elements.bound.checked, pauses: form.elements.pauses.value, ...loansOf(form) };
  if (live) body.with_declined = form.elements.with_declined.checked;
  else body.trace = form.elements.trace.value;
  if (form.elements.name.value.trim()) body.name = form.elements.name.value.trim();
  for (const name of [...WHOLE, ...FRACTIONS]) {
    const text = form.elements[name].value.trim();
    if (text !== "" && shown(form, name)) body[name] = Number(text);
  }
  return body;
}

export function startStudyForm() {
  const form = document.getElementById("study-form");
  if (!form) return;
  const problem = form.querySelector("[data-problem]");
  const button = form.querySelector("button[type=submit]");

  const count = () => {
    tellOfLoans(form);
    tellOfNewcomers(form);
    const runs = countRuns(form);
    form.querySelector("[data-count]").textContent = `${runs} run${runs === 1 ? "" : "s"}`;
    button.disabled = runs === 0;
  };
  // Jobs come with the cluster that they were made for; a person may change it.
  const fillIn = () => {
    const live = form.elements.source.value === "live";
    for (const part of form.querySelectorAll("[data-for]")) {
      part.hidden = (part.dataset.for === "live") !== live;
      if (part instanceof HTMLOptionElement) part.disabled = part.hidden;
    }
    const known = live ? form.querySelector("input[value=live]").dataset : form.elements.trace.selectedOptions[0]?.dataset;
    if (!known) return;
    form.elements.servers.value = known.servers || "";
    form.elements.gpus_per_server.value = known.gpusPerServer || "";
    form.elements.slot_seconds.value = known.slotSeconds || "";
    form.elements.reserve_servers.value = known.reserveServers || "0";
    form.elements.inference_usage.value = live ? "measured" : "daily";
    form.elements.inference_servers.placeholder = live && known.inferenceServers !== "0" ? `0, ${known.inferenceServers}` : "none";
    form.elements.inference_gpu_type.placeholder = live ? known.inferenceGpuType : "T4";
    count();
  };

  form.addEventListener("change", (event) => { if (["source", "trace"].includes(event.target.name)) fillIn(); else count(); });
  form.addEventListener("input", count);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem.hidden = true;
    button.disabled = true;
    try {
      const study = await write(form.dataset.create, bodyOf(form));
      window.location.assign(`/simulations/${study.id}/`);
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
      button.disabled = false;
    }
  });
  fillIn();
}
