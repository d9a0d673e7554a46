// Elements from data. Strings become text nodes, never markup.

type Child = Node | string;

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function button(label: string, title: string, act: () => void): HTMLButtonElement {
  const element = make("button", { type: "button", title }, label);
  element.addEventListener("click", act);
  return element;
}

/** A colour of the style sheet, as it is in the present scheme. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** One of several, as a row of buttons. */
export function choice(label: string, options: string[], chosen: number, choose: (option: number) => void): HTMLElement {
  const buttons = options.map((option, i) =>
    button(option, "", () => {
      buttons.forEach((other, j) => other.setAttribute("aria-pressed", String(i === j)));
      choose(i);
    }),
  );
  buttons.forEach((element, i) => element.setAttribute("aria-pressed", String(i === chosen)));
  return make("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}
