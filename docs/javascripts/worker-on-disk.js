// Browsers start no workers for pages opened from disk, and the site's search is one. There, this
// gives `Worker` the same interface over a hidden frame, which runs the script in a window of its own.
(function () {
  "use strict";
  if (window.location.protocol !== "file:") return;

  class FrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.onerror = null;
      this._waiting = [];
      this._ready = false;
      this._frame = document.createElement("iframe");
      this._frame.hidden = true;
      document.body.appendChild(this._frame);
      const inner = this._frame.contentWindow;
      inner.document.open();
      inner.document.write("<!doctype html><body></body>");
      inner.document.close();
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inner.importScripts = (...urls) =>
        urls.reduce((done, next) => done.then(() => this._load(next)), Promise.resolve());
      this._load(url).then(() => {
        this._ready = true;
        this._waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }

    _load(url) {
      const inner = this._frame.contentWindow;
      return new Promise((resolve) => {
        const script = inner.document.createElement("script");
        script.onload = resolve;
        script.onerror = () => {
          if (this.onerror) this.onerror(new ErrorEvent("error", { message: `cannot load ${url}` }));
        };
        script.src = new URL(url, window.location.href).href;
        inner.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      if (!this._ready) {
        this._waiting.push(data);
        return;
      }
      const event = new MessageEvent("message", { data });
      const inner = this._frame.contentWindow;
      inner.dispatchEvent(event);
      if (inner.onmessage) inner.onmessage(event);
    }

    terminate() {
      this._frame.remove();
    }
  }

  window.Worker = FrameWorker;
  window.IFrameWorker = FrameWorker; // the name that the search script looks for
})();
