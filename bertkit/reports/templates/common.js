"use strict";
// What all pages share: the theme button. Texts are always inserted as text nodes, never as HTML.

const $ = (id) => document.getElementById(id);

function createElement(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Creates an element whose text direction does not affect its surroundings.
function createIsolatedElement(tag, className, text) {
  const node = createElement(tag, className, text);
  node.dir = "auto";
  return node;
}

// ---- theme

(() => {
  const root = document.documentElement, button = $("theme");
  const isDark = () => getComputedStyle(root).colorScheme === "dark" ||
    (root.dataset.theme === undefined && matchMedia("(prefers-color-scheme: dark)").matches);
  const updateLabel = () => { button.textContent = isDark() ? "light" : "dark"; };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; updateLabel(); });
  updateLabel();
  button.hidden = false;
})();

