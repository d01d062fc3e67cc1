// Last of all: every view is registered.
RT.app.start();
