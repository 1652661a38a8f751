// One dialog for every question. Resolves with true for yes; fields that `build` adds are read by the caller.

export function ask({ title, text = "", yes = "Yes", danger = false, build = null }) {
  const dialog = document.getElementById("confirm");
  const body = document.getElementById("confirm-body");
  const button = document.getElementById("confirm-yes");
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-text").textContent = text;
  body.replaceChildren();
  if (build) build(body);
  button.textContent = yes;
  button.classList.toggle("danger", danger);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

export function field(body, label, input) {
  const wrapper = document.createElement("label");
  wrapper.textContent = label;
  wrapper.append(input);
  body.append(wrapper);
  return input;
}

export function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
