"""What tests ask of the drawn page, in JavaScript: geometry, contrast, reach."""

from __future__ import annotations

ANSWERED = "document.body?.dataset.answers"

# Every text whose contrast with the nearest painted ground is under WCAG's AA, as "text: ratio".
FAINT = """(() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(at).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${walker.currentNode.textContent.trim()}: ${ratio.toFixed(2)}`);
  }
  return found;
})()"""

# {name: [left, right]} of a row's segments and the point, as shares of the bar.
SHARES = """((row) => {
  const bar = row.querySelector(".bar").getBoundingClientRect();
  const share = (box) => [(box.left - bar.left) / bar.width, (box.right - bar.left) / bar.width];
  return Object.fromEntries([...row.querySelectorAll(".bar i, .bar .point")]
    .map((part) => [part.className, share(part.getBoundingClientRect())]));
})"""

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
FOCUSED = "document.activeElement.getAttribute('href') ?? document.activeElement.id"
