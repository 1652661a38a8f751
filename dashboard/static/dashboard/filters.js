// The jobs table's filters: a choice takes effect at once, and addresses stay short.

export function startFilters() {
  const form = document.getElementById("filters");
  if (!form) return;
  form.addEventListener("change", (event) => { if (event.target.type !== "search") form.requestSubmit(); });
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData.entries()]) if (value === "") event.formData.delete(name);
  });
}
