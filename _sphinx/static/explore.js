/* The sliders of a page. Pictures of every setting were drawn when the book was built; they lie packed beside
   the default one (remat/explore/frames.py says how), and are unpacked when their explorer comes near. Without
   this script, or in a browser that cannot unpack gzip, the sliders stay hidden and the default stands. */
(() => {
  "use strict";

  const gunzip = async (base64) => {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };

  const pictures = (templates) => {
    const found = [];
    for (const { text, frames, columns } of templates) {
      const numbers = columns.map((column) => column.split(" "));
      frames.forEach((frame, row) => {
        const parts = numbers.map((column, i) => text[i] + column[column.length > 1 ? row : 0]);
        found[frame] = parts.join("") + text[text.length - 1];
      });
    }
    return found;
  };

  const start = (explorer) => {
    const find = (name) => explorer.querySelector(`.remat-${name}`);
    const [controls, image, sentence, packed] = ["sliders", "picture", "sentence", "frames"].map(find);
    const sliders = [...controls.querySelectorAll("input")].map((input) => ({
      input,
      value: input.parentElement.querySelector(".remat-value"),
      texts: JSON.parse(input.dataset.texts),
    }));
    const urls = [];
    const number = (positions) =>
      positions.reduce((at, position, i) => at * sliders[i].texts.length + position, 0);
    const positions = () => sliders.map(({ input }) => Number(input.value));
    let drawn = null, sentences = null, loading = null, shown = 0, ahead = [];
    const url = (at) => (urls[at] ??= URL.createObjectURL(new Blob([drawn[at]], { type: "image/svg+xml" })));

    const readAhead = (from) => {  // the pictures one step away, so that the next one is there at once
      ahead = from.flatMap((position, i) => [position - 1, position + 1]
        .filter((next) => next >= 0 && next < sliders[i].texts.length)
        .map((next) => Object.assign(new Image(), { src: url(number(Object.assign([...from], { [i]: next }))) })));
    };

    const show = () => {
      const now = positions();
      sliders.forEach(({ input, value, texts }, i) => {
        value.textContent = texts[now[i]];
        input.setAttribute("aria-valuetext", texts[now[i]]);
      });
      if (!drawn) return load();
      const at = number(now);
      if (at !== shown) {
        image.src = url(at);
        if (sentence.textContent !== sentences[at]) sentence.textContent = sentences[at];
        shown = at;
      }
      setTimeout(readAhead, 0, now);
    };

    const load = () => (loading ??= gunzip(packed.textContent).then((content) => {
      drawn = pictures(content.templates);
      sentences = content.sentences;
      packed.remove();
      show();
    }, () => { controls.hidden = true; }));

    for (const { input } of sliders) {
      input.value = input.defaultValue;  // some browsers bring back where it stood before a reload
      input.addEventListener("input", show);
      input.addEventListener("focus", load);
    }
    shown = number(positions());
    controls.hidden = false;
    new IntersectionObserver((entries, observer) => {
      if (entries.some((entry) => entry.isIntersecting)) { observer.disconnect(); load(); }
    }, { rootMargin: "400px" }).observe(explorer);
  };

  if ("DecompressionStream" in window) {
    document.querySelectorAll(".remat-explorer").forEach(start);
  }
})();
