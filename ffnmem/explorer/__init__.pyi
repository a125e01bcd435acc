from .exploring import explore as explore
