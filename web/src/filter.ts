// A field that leaves only those rows of the table below it in which all of its words are found.

import { make } from "./dom";

export function makeFilter(host: HTMLElement): void {
  const table = host.nextElementSibling?.querySelector("tbody");
  if (!table) return;
  const rows = [...table.rows].map((row) => ({ row, text: row.textContent!.toLowerCase() }));
  const field = make("input", { type: "search", class: "filter", placeholder: host.dataset.filter!, "aria-label": host.dataset.filter! });
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { row, text } of rows) row.hidden = !words.every((word) => text.includes(word));
  });
  host.append(field);
}
