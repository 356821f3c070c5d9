// Claims that the reader judges (_sphinx/self_check.py): says whether the verdict is right and opens the answer.
// Nothing is stored or sent. Without this script the buttons stay hidden and the answer is a fold.
(() => {
  "use strict";

  const word = (button) => button.parentElement.textContent.trim().toLowerCase();

  document.querySelectorAll(".self-check").forEach((check) => {
    const form = check.querySelector("form");
    const [choices, verdict] = ["choices", "verdict"].map((name) => form.querySelector(`.self-check-${name}`));

    const judge = (event) => {
      event.preventDefault();
      const chosen = form.querySelector("input:checked");
      const right = form.querySelector("[data-right]");
      if (!chosen) {
        verdict.textContent = "Choose one of the three first.";
        return;
      }
      verdict.dataset.right = chosen === right;
      verdict.textContent = chosen === right
        ? `Right: ${word(right)}. Compare your reasons.`
        : `You said “${word(chosen)}”. The answer is “${word(right)}”.`;
      check.querySelector("details").open = true;
    };

    form.reset();  // some browsers bring back what was chosen before a reload
    form.addEventListener("submit", judge);
    form.addEventListener("change", () => {
      verdict.textContent = "";
      delete verdict.dataset.right;
    });
    choices.hidden = false;
  });
})();
