SELECT; -- a constraint that is validated stays so
