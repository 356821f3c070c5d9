// What is wider than the page scrolls in a box of its own. Such a box is a stop of the tab key, so that the
// arrow keys can scroll it; a box with nothing to scroll is not.
(() => {
  const boxes = 'pre, .pst-scrollable-table-container, figure, mjx-container[display="true"]';
  const sizes = new ResizeObserver((changed) => {
    for (const { target } of changed) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  const watch = () => document.querySelectorAll(boxes).forEach((box) => sizes.observe(box));
  addEventListener("load", () => {
    watch();
    globalThis.MathJax?.startup?.promise?.then(watch);
  });
})();
