/** The page's tooltip, shown on hover and on keyboard focus. */

import { replace } from "./dom.js";

/** Add a tooltip to an element. `content()` returns its contents when it is shown. */
export function addTip(element, content) {
  const show = () => showTip(element, content());
  element.addEventListener("pointerenter", show);
  element.addEventListener("focus", show);
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("blur", hideTip);
  return element;
}

function showTip(element, content) {
  const tip = document.getElementById("tip");
  replace(tip, content);
  tip.hidden = false;
  const target = element.getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(target.left + target.width / 2 - size.width / 2, innerWidth - size.width - 8));
  const above = target.top - size.height - 6;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : target.bottom + 6}px`;
}

export function hideTip() {
  document.getElementById("tip").hidden = true;
}
