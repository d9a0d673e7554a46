// Hands for drawings that are whole without a script: dots that say what they are, lines that can be left out, code to copy.

const COPIED_MS = 1500;

export function makeResults(): void {
  document.querySelectorAll<HTMLElement>("[data-dots]").forEach(makeDots);
  document.querySelectorAll<HTMLElement>("[data-lines]").forEach(makeLines);
  document.querySelectorAll<HTMLButtonElement>("button[data-copy]").forEach(makeCopy);
}

function makeDots(figure: HTMLElement): void {
  const said = figure.querySelector<HTMLElement>(".said")!;
  figure.querySelectorAll<SVGCircleElement>("circle").forEach((dot) => {
    dot.querySelector("title")?.remove(); // what the browser would show beside it, a second later
    const say = () => {
      figure.querySelectorAll("circle.chosen").forEach((other) => other.classList.remove("chosen"));
      dot.classList.add("chosen");
      said.textContent = dot.dataset.said!;
    };
    for (const kind of ["pointerenter", "focus", "click"]) dot.addEventListener(kind, say);
  });
}

function makeLines(figure: HTMLElement): void {
  figure.querySelectorAll<HTMLButtonElement>("[data-toggles]").forEach((name) => {
    const line = figure.querySelector<SVGPolylineElement>(`[data-line="${name.dataset.toggles}"]`)!;
    name.addEventListener("click", () => {
      const isShown = line.toggleAttribute("data-hidden") === false;
      name.setAttribute("aria-pressed", String(isShown));
    });
  });
}

function makeCopy(button: HTMLButtonElement): void {
  button.addEventListener("click", async () => {
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy!);
      button.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(button.parentElement!.querySelector("code")!);
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => (button.textContent = label), COPIED_MS);
  });
}
