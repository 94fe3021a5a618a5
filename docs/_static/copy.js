// A button on each block of code copies it; of a session, only what was typed.
if (navigator.clipboard) {
  for (const block of document.querySelectorAll("div.highlight > pre")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const lines = block.textContent.trimEnd().split("\n");
      const typed = lines.filter((line) => /^(>>>|\.\.\.|\$)( |$)/.test(line));
      const isSession = /^(>>>|\$) /.test(lines[0]);
      const copied = isSession ? typed.map((line) => line.replace(/^\S+ ?/, "")) : lines;
      await navigator.clipboard.writeText(copied.join("\n") + "\n");
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    block.parentElement.append(button);
  }
}
