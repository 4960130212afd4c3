// The panel that says everything about one byte: the one under the pointer, or the one the arrow keys have reached.
// The page is complete without it.
"use strict";
(() => {
  const text = document.getElementById("text");
  const panel = document.getElementById("panel");
  const record = JSON.parse(document.getElementById("record").textContent);
  const cells = [...text.querySelectorAll("b")];
  const place = new Map(cells.map((cell, index) => [cell, index]));
  const head = document.getElementById("panel-byte");
  const body = document.getElementById("panel-passes");
  let current = -1;

  const value = (index) => parseInt(record.bytes.slice(2 * index, 2 * index + 2), 16);

  function name(index) {
    const byte = value(index);
    const known = { 10: "newline", 32: "space", 9: "tab" }[byte];
    if (known) return known;
    const group = cells[index].closest(".m");
    if (!group) return cells[index].textContent;
    const parts = [...group.querySelectorAll("b")];
    return `${group.textContent} (its byte ${parts.indexOf(cells[index]) + 1} of ${parts.length})`;
  }

  function show(index) {
    if (index < 0 || index >= cells.length || index === current) return;
    if (current >= 0) cells[current].classList.remove("now");
    current = index;
    cells[index].classList.add("now");
    const bits = record.bits[index];
    const hex = value(index).toString(16).padStart(2, "0");
    const surprisal = bits === null ? "not scored: nothing before it" : `${bits.toFixed(2)} bits`;
    head.textContent = `Byte ${index}: ${name(index)}, 0x${hex} (${value(index)}). Surprisal: ${surprisal}.`;
    body.replaceChildren(...record.ids.map((chosen, pass) => row(pass, chosen[index], index)));
  }

  function row(pass, experts, index) {
    const gates = record.gates[pass][index];
    const words = experts.map((expert, slot) => `expert ${expert}, gate ${gates[slot].toFixed(3)}`).join("; ");
    const sure = `confidence ${record.confidence[pass][index].toFixed(3)}`;
    const line = document.createElement("li");
    line.textContent = `Pass ${pass + 1}: ${words} (${sure}, entropy ${record.entropy[pass][index].toFixed(2)} bits)`;
    return line;
  }

  function nextLine(direction) {
    const box = cells[current].getBoundingClientRect();
    let best = -1, distance = Infinity, line = null;
    for (let i = current + direction; i >= 0 && i < cells.length; i += direction) {
      const other = cells[i].getBoundingClientRect();
      if (Math.abs(other.top - box.top) < box.height / 2) continue;
      line ??= other.top;
      if (Math.abs(other.top - line) > box.height / 2) break;
      const away = Math.abs(other.left - box.left);
      if (away < distance) [best, distance] = [i, away];
    }
    return best;
  }

  const keys = {
    ArrowRight: () => current + 1,
    ArrowLeft: () => current - 1,
    ArrowDown: () => nextLine(1),
    ArrowUp: () => nextLine(-1),
    Home: () => 0,
    End: () => cells.length - 1,
  };

  const under = (event) => place.get(event.target.closest("b")) ?? -1;
  text.addEventListener("pointerover", (event) => show(under(event)));
  text.addEventListener("click", (event) => show(under(event)));
  text.addEventListener("focus", () => show(Math.max(current, 0)));
  text.addEventListener("keydown", (event) => {
    const wanted = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (!wanted) return;
    event.preventDefault();
    show(wanted());
    cells[current].scrollIntoView({ block: "nearest" });
  });
  text.tabIndex = 0;
  text.setAttribute("aria-describedby", "keys");
  panel.hidden = false;
  document.getElementById("keys").hidden = false;
})();
