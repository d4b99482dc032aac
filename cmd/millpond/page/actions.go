package page

// actionRoutes are the pages and forms that change queues.
func (h *Handler) actionRoutes() []route { return nil }
