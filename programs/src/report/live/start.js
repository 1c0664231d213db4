'use strict';
// The laboratory in the page: it begins once the page has been painted.

const lab = document.getElementById('try-lab'),
  blob = (id) => document.getElementById(id).textContent;
if (lab)
  requestAnimationFrame(() =>
    setTimeout(async () => {
      try {
        lab.view = new Lab(lab, JSON.parse(new TextDecoder().decode(await inflate(blob('lab-data')))), blob);
        if (location.hash.startsWith('#try')) document.getElementById('try').scrollIntoView();
      } catch (error) {
        lab.textContent = `The model cannot run in this browser: ${error.message}`;
      }
    }),
  );
