/* Search in a page that was opened from the disk. A browser starts no worker from a file, so the search index would
   never load. This runs the worker's script in a hidden frame of the page instead, and passes messages both ways. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      const tell = (data) => this.dispatchEvent(Object.assign(new MessageEvent("message", { data }), {}))
      this.ready = new Promise((resolve, reject) => {
        inside.postMessage = (data) => tell(data)
        inside.importScripts = () => Promise.resolve()
        const script = frame.contentDocument.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        frame.contentDocument.body.append(script)
      })
      this.inside = inside
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
    set onmessage(listener) { this.addEventListener("message", listener) }
    terminate() {}
  }
}
